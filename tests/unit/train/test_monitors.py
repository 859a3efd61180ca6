"""Metrics go to the monitors that a run file names, and a monitor that fails ends nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from air.errors import MissingError, UsageError
from air.train import load
from air.train.monitors import Monitor, Monitors, check, check_key, flat, without_secrets


class Memory(Monitor):
    """Keeps what it gets, and fails from step `until` on, as a monitor does when the network is gone."""

    name = "Memory"

    def __init__(self, until: int) -> None:
        self.until = until
        self.logged: list[tuple[int, Mapping[str, float]]] = []
        self.closed = False

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        if step >= self.until:
            raise ConnectionError("the network is gone\nand more about it")
        self.logged.append((step, metrics))

    def close(self) -> None:
        self.closed = True


def test_a_monitor_that_fails_is_reported_once_and_left_out() -> None:
    lines: list[str] = []
    weak, strong = Memory(until=2), Memory(until=99)

    def never() -> Monitor:
        raise RuntimeError("no account")

    monitors = Monitors(lines.append, {"A": lambda: weak, "B": lambda: strong, "C": never})
    for step in (1, 2, 3):
        monitors.log({"step": step, "reward": 0.5})
    monitors.close()
    kept = "gets no more metrics of this run (metrics.jsonl has them all)"
    assert lines == [f"C {kept}: no account", f"Memory {kept}: the network is gone"]
    assert [step for step, _ in weak.logged] == [1]
    assert strong.logged[2] == (3, {"reward": 0.5})
    assert (weak.closed, strong.closed) == (False, True)


def test_a_row_is_flattened_to_finite_numbers() -> None:
    row = {
        **{"step": 1, "reward": 0.5, "phi": None, "updated": True, "bad": float("nan")},
        "tasks": {"x": {"direction": "higher", "scores": [1.0], "reward": 0.25}},
        "versions": {"0": {"tokens": 3}},
    }
    assert flat(row) == {"reward": 0.5, "updated": 1.0, "tasks/x/reward": 0.25}


@pytest.mark.parametrize(
    ("settings", "package"),
    [({"monitors": {"wandb": {}}}, "wandb"), ({"embedded": {"tensorboard": True}}, "tensorboard")],
)
def test_a_missing_package_is_one_line(settings: dict[str, object], package: str) -> None:
    config = load("configs/quickstart.toml", settings)
    with pytest.raises(MissingError, match=rf"air-agent\[{package}\]"):
        check(config, lambda name: None if name == package else name)
    check(load("configs/quickstart.toml"), lambda _: None)


def test_the_keys_are_those_of_prime_rl(tmp_path: Path) -> None:
    file = tmp_path / "monitors.toml"
    file.write_text(
        '[monitors.file]\n[monitors.wandb]\nproject = "p"\ntags = ["a"]\noffline = true\n'
    )
    options = load("configs/quickstart.toml", file).monitors
    assert options.wandb is not None
    assert (options.wandb.project, options.wandb.tags, options.wandb.offline) == ("p", ["a"], True)
    assert options.file.path == "metrics.jsonl"
    assert load("configs/quickstart.toml").monitors.wandb is None


def test_secrets_stay_on_this_machine() -> None:
    env = {"taskset": {"id": "air"}, "split_seed": 5, "agent": {"harness": {"env": {"KEY": "x"}}}}
    settings = {
        "source": [{"env": env}],
        "teacher": {"name": "t", "headers": {"Authorization": "x"}},
    }
    assert without_secrets(settings) == {
        "source": [{"env": {"taskset": {"id": "air"}, "agent": {"harness": {}}}}],
        "teacher": {"name": "t"},
    }


def test_a_missing_key_is_refused_before_a_prompt(tmp_path: Path) -> None:
    nobody = {"HOME": str(tmp_path)}
    with pytest.raises(UsageError, match=r"no API key.*offline = true"):
        check_key(nobody, asks=True)
    check_key(nobody, asks=False)
    check_key({**nobody, "WANDB_API_KEY": "k"}, asks=True)
    (tmp_path / ".netrc").write_text("machine example.org login a password b\n")
    with pytest.raises(UsageError, match="wandb login"):
        check_key(nobody, asks=True)
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password k\n")
    check_key(nobody, asks=True)
