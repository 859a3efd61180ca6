"""What the tests of the documentation share: a folder with a tiny model and a recorded run."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from air import train
from air.cli.main import main
from air.train.model import policy as policies
from tests import fork_server, once
from tests.once import shared

RUN = "my-run"
MODEL = "my-model"


def settings(folder: Path) -> dict[str, object]:
    """A run that takes seconds: one step of four episodes of two turns."""
    source = {
        "env": {
            "taskset": {"id": "air", "tasks": ["titanic"]},
            "agent": {
                "max_turns": 2,
                "runtime": {"type": "subprocess"},
                "harness": {"id": "air", "max_observation_tokens": 32},
            },
        }
    }
    return {
        "max_steps": 1,
        "seq_len": 768,
        "output_dir": str(folder / "outputs"),
        "run": {"name": RUN},
        "model": {"name": str(folder / MODEL)},
        "ckpt": {"interval": 1},
        "orchestrator": {
            "batch_size": 4,
            "group_size": 2,
            "train": {"sampling": {"max_completion_tokens": 16}, "source": [source]},
        },
    }


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of the test run's own."""
    folder = once.cache(tmp_path_factory)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIR_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """A folder with `my-model`, a model that says nothing of use, and `outputs/my-run`, its run, to which
    episodes of scripted agents are added."""
    return shared(tmp_path_factory, "docs", record)


def record(folder: Path) -> None:
    """Fills the folder `recorded`."""
    texts = ["Try it.\n```bash\nls\nvalidate\n```"]
    policies.build(folder / MODEL, texts, hidden=32, layers=1, heads=2, kv_heads=1, vocab=320)
    train.run(train.load(settings(folder)), quiet=True)
    demos = folder / "demos"
    argv = ["demos", str(demos), "--tasks", "titanic", "--episodes", "2", "--runtime", "subprocess"]
    assert main(argv) == 0
    run = folder / "outputs" / RUN
    shutil.copytree(demos / "trajectories", run / "trajectories", dirs_exist_ok=True)
    shutil.rmtree(demos)


@pytest.fixture
def place(recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of `recorded` as the working folder."""
    folder = tmp_path / "place"
    shutil.copytree(recorded, folder)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PATH, with `air`, `rl` and `sft` that start quickly."""
    folder = tmp_path_factory.mktemp("programs")
    for name in ("air", "rl", "sft"):
        file = folder / name
        program = shlex.join(fork_server.of_this_run().program(name))
        file.write_text(f'#!/bin/sh\nexec {program} "$@"\n')
        file.chmod(0o755)
    return folder
