"""Importing does nothing heavy: each light module is imported in a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import air

ROOT = Path(air.__file__).parent
HEAVY = (
    "altair",
    "docker",
    "fastapi",
    "gymnasium",
    "matplotlib",
    "openai",
    "pandas",
    "renderers",
    "sklearn",
    "starlette",
    "streamlit",
    "tensorboard",
    "torch",
    "transformers",
    "uvicorn",
    "verifiers",
    "wandb",
)
HEAVY_PARTS = ("env", "integrity", "manual", "replay", "serve", "train", "view")
"""Parts that stand on heavy packages; nothing light imports them at the top of a file."""
HEAVY_ROOMS = (
    "air.sandbox.docker",
    "air.sandbox.images",
    "air.sandbox.writable_layer",
    "air.worlds.games.gym",
)
"""Rooms of light parts that stand on heavy packages."""
LIGHT_MODULES = (
    "air.sandbox.images.build_contexts",
    *(
        f"air.sandbox.docker.{name}"
        for name in ("air_images", "base_image", "engine_errors", "oci_runtime", "podman")
    ),
)
LIGHT_TRAINING = (
    "air.train",
    "air.train.algorithms",
    "air.train.algorithms.episode_baselines",
    "air.train.algorithms.custom_estimator",
    "air.train.algorithms.kl_penalty",
    "air.train.algorithms.rewards_only",
    "air.train.config",
    "air.train.config.loss_options",
    "air.train.config.model_options",
    "air.train.config.overrides",
    "air.train.loop.progress",
    "air.train.loop.run_folder",
    "air.train.model.tokenizer",
    "air.train.prime_rl.gpu_placement",
    "air.train.prime_rl.schema",
    "air.train.prime_rl.throughput",
)
"""Modules of a heavy part that commands import before they know what they need."""
HELP = """
import sys
from air.cli import main
heavy, sys.argv = sys.argv[1].split(","), sys.argv[2:]
try:
    getattr(main, sys.argv[0])()
except SystemExit as end:
    assert end.code in (0, None), end.code
loaded = {*heavy, "rich"} & set(sys.modules)
if loaded:
    sys.exit(f"--help of {sys.argv} loads {', '.join(sorted(loaded))}")
"""
PROBE = """
import importlib, sys
for name in sys.argv[2:]:
    importlib.import_module(name)
    loaded = set(sys.argv[1].split(",")) & set(sys.modules)
    if loaded:
        sys.exit(f"importing {name} loads {', '.join(sorted(loaded))}")
"""


def probe(*modules: str) -> None:
    run(PROBE, *modules)


def run(code: str, *words: str) -> None:
    argv = [sys.executable, "-W", "error", "-c", code, ",".join(HEAVY), *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_import_air_is_light() -> None:
    probe("air")


def test_light_modules_are_light() -> None:
    modules = []
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(("air", *parts)).removesuffix(".__init__")
        heavy = name.startswith(HEAVY_ROOMS) and name not in LIGHT_MODULES
        in_a_grader_box = "grader" in parts  # beside programs of `tasks/_shared`
        if parts[0] not in (*HEAVY_PARTS, "_shipped") and not heavy and not in_a_grader_box:
            modules.append(name)
    assert {"air.cli.boxes.setup", *LIGHT_MODULES} <= set(modules)
    probe(*modules)


def test_what_commands_import_of_training_is_light() -> None:
    probe(*LIGHT_TRAINING)


@pytest.mark.parametrize(
    "words", [("rl",), ("sft",), ("main",), ("main", "eval"), ("main", "view")]
)
def test_help_loads_no_package(words: tuple[str, ...]) -> None:
    """`rl --help`, `sft --help`, `air --help` and `air eval --help` answer at once."""
    run(HELP, *words, "--help")
