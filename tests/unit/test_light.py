"""Importing does nothing heavy: each light module is imported in a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import air

ROOT = Path(air.__file__).parent
HEAVY = (
    "altair",
    "docker",
    "fastapi",
    "openai",
    "pandas",
    "renderers",
    "sklearn",
    "starlette",
    "streamlit",
    "torch",
    "transformers",
    "uvicorn",
    "verifiers",
)
HEAVY_PARTS = ("env", "manual", "replay", "serve", "train", "view")
"""Parts that stand on heavy packages; nothing light imports them at the top of a file."""
HEAVY_ROOMS = ("air.sandbox.docker",)
"""Rooms of light parts that stand on heavy packages."""
LIGHT_MODULES = tuple(
    f"air.sandbox.docker.{name}" for name in ("base_image", "engine_errors", "images", "podman")
)
PROBE = """
import importlib, sys
for name in sys.argv[2:]:
    importlib.import_module(name)
    loaded = set(sys.argv[1].split(",")) & set(sys.modules)
    if loaded:
        sys.exit(f"importing {name} loads {', '.join(sorted(loaded))}")
"""


def probe(*modules: str) -> None:
    argv = [sys.executable, "-W", "error", "-c", PROBE, ",".join(HEAVY), *modules]
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
        if parts[0] not in (*HEAVY_PARTS, "_shipped") and not heavy:
            modules.append(name)
    assert "air.cli.boxes.setup" in modules
    probe(*modules)
