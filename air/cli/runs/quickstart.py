"""Implements the command `air quickstart`: builds a small new model, and trains it as an agent.

The model is first trained on demonstrations of scripted agents (supervised; this warm start is cached), and
then by reinforcement learning with the run file `configs/quickstart.toml`.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

from air import paths
from air.cli import flags
from air.cli.heavy_imports import collector_paused

HELP = "build a small policy, warm-start it on demonstrations, and train it"
EXAMPLES = (
    "air quickstart",
    "air quickstart --max-steps 10 --run.name first",
    "air quickstart --prepare",
)
TAKES_REST = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "air quickstart [--fresh] [--prepare] [--dotted.key VALUE …]"
    parser.add_argument(
        "--fresh", action="store_true", help="redo the demonstrations and the warm start"
    )
    flags.add_count(parser, "--demos", 150, "demonstrations of each task")
    flags.add_count(parser, "--sft-steps", 220, "training steps of the warm start")
    parser.add_argument("--prepare", action="store_true", help="stop before the training")


def run(args: argparse.Namespace) -> int:
    with collector_paused():
        from air.cli.runs import rl
        from air.sandbox.contract.box import NOT_ISOLATED
        from air.sandbox.docker import air_images
        from air.train.config import overrides
        from air.train.config.run_config import RunConfig

    runtime = "docker"
    if reason := air_images.why_not_ready():
        runtime = "subprocess"
        if not os.environ.get("AIR_SETUP_SAID_SO"):  # `make quickstart` has just printed this line
            print(paths.runnable(f"No Docker boxes: {reason}. {NOT_ISOLATED}."), flush=True)
    policy = prepare(
        paths.cache() / "quickstart",
        fresh=args.fresh,
        demos_per_task=args.demos,
        sft_steps=args.sft_steps,
    )
    if args.prepare:
        print(f"policy: {policy}")
        return 0
    settings = [
        "--model.name",
        str(policy),
        "--orchestrator.train.source.0.env.agent.runtime.type",
        runtime,
    ]
    file = paths.shipped("configs") / "quickstart.toml"
    sources = overrides.parse([f"@{file}", *settings, *args.rest], RunConfig)
    return rl.train(overrides.build(RunConfig, sources).named())


def prepare(folder: Path, *, fresh: bool, demos_per_task: int, sft_steps: int) -> Path:
    """Makes demonstrations, trains a new small model on them, and returns the folder of the model. If the
    cache `folder` already has a model that was made with the same settings, tasks and source files, returns
    that model instead, unless `fresh` is true.

    `demos_per_task` is the number of demonstrations of each task, and `sft_steps` is the number of training
    steps. Raises UsageError if a file cannot be read or written.
    """
    stamp, policy = _stamp(demos_per_task, sft_steps), folder / "policy"
    with paths.locked(folder.with_suffix(".lock")):
        if not fresh and _read(folder / "stamp") == stamp and (policy / "config.json").is_file():
            print(f"warm-started policy: {policy} (cached; --fresh redoes it)", flush=True)
            return policy
        shutil.rmtree(folder, ignore_errors=True)
        _make(folder, demos_per_task, sft_steps)
        (folder / "stamp").write_text(stamp)
    return policy


def _make(folder: Path, demos_per_task: int, sft_steps: int) -> None:
    with collector_paused():
        from air.cli.runs import demos, sft
        from air.train.config import overrides
        from air.train.config.sft_config import SFTRunConfig
        from air.train.model import policy as policies
        from air.train.model.demonstrations import read_examples

    tasks = _run_data()["orchestrator"]["train"]["source"][0]["env"]["taskset"]["tasks"]
    # Scripted agents run only air's own actions, so plain processes suffice as boxes and start much faster.
    print("scripted agents play demonstrations in process boxes …", flush=True)
    data = demos.write(folder / "demos", tasks, demos_per_task, seed=0, runtime="subprocess")
    texts = [message["content"] for talk in read_examples(data) for message in talk]
    policies.build(folder / "base", texts)
    rise = min(20, sft_steps // 10)
    settings = ["--model.name", str(folder / "base"), "--data.name", str(data)]
    settings += ["--output-dir", str(folder), "--run.name", "policy", "--max-steps", str(sft_steps)]
    settings += ["--scheduler.warmup-steps", str(rise)]
    settings += ["--scheduler.decay-steps", str(sft_steps - rise)]
    sft.train(
        overrides.build(
            SFTRunConfig,
            overrides.parse([f"@{_config('sft/warmstart.toml')}", *settings], SFTRunConfig),
        )
    )


def _stamp(*settings: object) -> str:
    """Returns a hash of `settings`, of the tasks and of the source files (without docstrings and comments) on
    which the model of `prepare` depends. If the hash differs from the stored one, the cached model is out of
    date."""
    with collector_paused():
        from air import actions, tasks
        from air.env.chat import harness
        from air.source_code import code_of_file
        from air.train.evaluation import scripted_agent
        from air.train.model import demonstrations, policy, sft, tokenizer
        from air.worlds.research import world

    digest = hashlib.sha256(repr(settings).encode())
    for name in tasks.available():
        digest.update(tasks.load(name).hash.encode())
    modules = (
        scripted_agent,
        policy,
        tokenizer,
        demonstrations,
        sft,
        harness,
        world,
        actions.fenced,
    )
    for path in map(Path, filter(None, [module.__file__ for module in modules])):
        digest.update(code_of_file(path).encode())
    digest.update(_config("sft/warmstart.toml").read_bytes())
    return digest.hexdigest()


def _run_data() -> dict[str, Any]:
    from air.config import read_toml

    return read_toml(_config("quickstart.toml"))


def _config(name: str) -> Path:
    return paths.shipped("configs") / name


def _read(path: Path) -> str:
    return path.read_text() if path.is_file() else ""
