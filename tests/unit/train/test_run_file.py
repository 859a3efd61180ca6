"""Run files: merging, flags, and one clear line for whatever is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from air.errors import ConfigError, MissingError
from air.train.config import overrides
from air.train.config.run_config import RunConfig

GOOD = """
max_steps = 3
[model]
name = "m"
[orchestrator]
batch_size = 16
group_size = 8
[[orchestrator.train.source]]
[orchestrator.train.source.env]
delta = "best"
[orchestrator.train.source.env.taskset]
id = "air"
tasks = ["titanic"]
[orchestrator.train.source.env.agent.harness]
id = "air"
"""


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(GOOD)
    return path


def built(*args: str) -> RunConfig:
    return overrides.build(RunConfig, overrides.parse(args))


def test_a_file_becomes_a_config_with_airs_own_classes(good: Path) -> None:
    from air.env.config import AirHarnessConfig, AirTasksetConfig, ResearchEnvConfig

    env = built("@", str(good)).orchestrator.train.source[0].env
    assert isinstance(env, ResearchEnvConfig)
    assert isinstance(env.taskset, AirTasksetConfig)
    assert isinstance(env.agent.harness, AirHarnessConfig)
    assert (env.delta, env.agent.max_turns, env.provider) == ("best", 10, "docker")


def test_later_files_and_then_flags_win(good: Path, tmp_path: Path) -> None:
    overlay = tmp_path / "o.toml"
    overlay.write_text("max_steps = 5\n[orchestrator]\nbatch_size = 32\n")
    config = built(f"@{good}", "@", str(overlay), "--max-steps", "7", "--trainer.optim.lr=1e-4")
    assert (config.max_steps, config.orchestrator.batch_size) == (7, 32)
    assert config.trainer.optim.lr == 1e-4
    assert config.orchestrator.group_size == 8


def test_a_flag_reaches_into_a_list(good: Path) -> None:
    config = built(f"@{good}", "--orchestrator.train.source.0.env.agent.max-turns", "4")
    assert config.orchestrator.train.source[0].env.agent.max_turns == 4


def test_what_is_dumped_reads_back_the_same(good: Path, tmp_path: Path) -> None:
    config = built(f"@{good}").named()
    dumped = tmp_path / "config.json"
    dumped.write_text(overrides.dump(config))
    assert overrides.dump(built(f"@{dumped}")) == overrides.dump(config)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("[trainer]\nlr = 1\n", ["run.toml", "trainer.lr", "--engine prime-rl"]),
        (
            "[deployment]\nnum_train_gpus = 8\n",
            ["run.toml", "deployment", "--engine prime-rl"],
        ),
        ("[trainer.optim]\nlr = 'fast'\n", ["run.toml", "trainer.optim", "lr", "fast"]),
        ("[orchestrator.algo]\ntype = 'ppo'\n", ["run.toml", "orchestrator.algo.type", "ppo"]),
        ("[resume]\n", ["resume needs run.name"]),
    ],
)
def test_what_is_wrong_in_a_file_is_one_line(good: Path, more: str, words: list[str]) -> None:
    good.write_text(GOOD + more)
    with pytest.raises(ConfigError) as caught:
        built(f"@{good}")
    text = str(caught.value)
    assert "\n" not in text
    for word in words:
        assert word in text


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--max-stepz", "3"], ["--max-stepz", "max_stepz"]),
        (["--orchestrator.batch-size", "20"], ["multiple", "group_size (8)"]),
        (["--orchestrator.train.source.3.ratio", "1"], ["source.3.ratio", "1 positions"]),
        (["--orchestrator.train.source.0.env.agent.runtime.type", "modal"], ["modal", "docker"]),
        (["--orchestrator.train.source.0.env.agent.retries.max-retries", "2"], ["env.retries"]),
        (["--orchestrator.train.source.0.env.colour", "red"], ["colour"]),
        (["stray"], ["stray", "@ FILE"]),
    ],
)
def test_what_is_wrong_in_a_flag_is_one_line(good: Path, args: list[str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        built(f"@{good}", *args)
    for word in words:
        assert word in str(caught.value)


def test_a_missing_file_and_a_file_that_is_no_toml(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match=r"none\.toml"):
        built(f"@{tmp_path / 'none.toml'}")
    bad = tmp_path / "bad.toml"
    bad.write_text("max_steps = = 3")
    with pytest.raises(ConfigError, match=r"bad\.toml: not valid TOML"):
        built(f"@{bad}")
