"""Run files: merging, flags, and one clear line for whatever is wrong."""

from __future__ import annotations

import datetime
import os
import re
from pathlib import Path

import pytest
import torch

from air.errors import ConfigError, MissingError
from air.train.algorithms.duration_weights import WithDurationWeights
from air.train.config import overrides
from air.train.config.embedded_config import ComputeConfig
from air.train.config.run_config import RunConfig
from air.train.config.sft_config import SFTRunConfig
from air.train.loop.progress import Progress
from air.train.loop.run import EmbeddedRun

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

SOURCE = "--orchestrator.train.source.0"


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(GOOD)
    return path


def built(*args: str) -> RunConfig:
    return overrides.build(RunConfig, overrides.parse(args, RunConfig))


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


def test_the_name_of_a_run_has_its_date_and_its_tasks(good: Path) -> None:
    tasks = '["titanic", "digits", "gridMaze", "blotto", "cifar10"]'
    model = "some where/Qwen3 0.6B"
    name = built(f"@{good}", f"{SOURCE}.env.taskset.tasks", tasks, "--model.name", model).named()
    date, rest = str(name.run.name)[:10], str(name.run.name)[10:]
    assert datetime.date.fromisoformat(date)
    assert re.fullmatch(r"-titanic-digits-gridMaze-2-more--Qwen3_0\.6B--[0-9a-f]{6}", rest)


@pytest.mark.parametrize(
    ("trained", "evaluated", "same"),
    [
        ("ors:http://h:1", "ors:http://h:1/#split=train&max_turns=5", True),
        ("ors:http://h:1", "ors:http://h:1#split=validation", False),
        ("ors:http://h:1#env=a", "ors:http://h:1#env=b", False),
        ("openenv:http://h:1#split=train", "openenv:http://h:1#split=train", True),
        ("openenv:http://h:1#split=train", "openenv:http://h:2#split=train", False),
        ("openenv:http://h:1", "openenv:http://h:1", False),  # the server chooses, by the seed
        ("question:gsm8k5", "question:gsm8k5", False),
    ],
)
def test_remote_tasks_of_one_split_are_not_both_trained_and_evaluated(
    good: Path, trained: str, evaluated: str, same: bool
) -> None:
    text = GOOD.replace('"titanic"', f'"{trained}"')
    source = (
        GOOD[GOOD.index("[[") :].replace("train", "eval").replace('"titanic"', f'"{evaluated}"')
    )
    good.write_text(text + source.replace('delta = "best"\n', ""))
    if not same:
        assert built(f"@{good}").orchestrator.eval is not None
        return
    with pytest.raises(ConfigError, match=r"its split 'train'.*#split=validation"):
        built(f"@{good}")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("[trainer]\nlr = 1\n", ["run.toml", "trainer.lr", "did you mean `trainer.optim.lr`?"]),
        ("[trainer.optm]\nlr = 1\n", ["no key `trainer.optm`", "did you mean `trainer.optim`?"]),
        ("[ckpt]\ninterval = true\n", ["run.toml", "`ckpt.interval` must be a number, not true"]),
        (
            "[deployment]\nnum_train_gpus = 8\n",
            ["run.toml", "deployment", "is a key of prime-rl", "--engine prime-rl"],
        ),
        ("[trainer.optim]\nlr = 'fast'\n", ["run.toml", "trainer.optim", "lr", "fast"]),
        ("[orchestrator.algo]\ntype = 'ppo'\n", ["run.toml", "orchestrator.algo", "type", "'ppo'"]),
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
        (["--max-stepz", "3"], ["--max-stepz", "no key `max_stepz`", "did you mean `max_steps`?"]),
        (["--max-steps", "x"], ["--max-steps", "got 'x' — give a whole number"]),
        (  # the mistyped key is named, not what it leaves missing or what else is wrong
            ["--orchestrator.batch-size", "x", "--orchestrator.group-sizes", "3"],
            ["--orchestrator.group-sizes", "did you mean `orchestrator.group_size`?", "1 more"],
        ),
        (["--run.name", "../../x"], ["--run.name", "'../../x'", "--output-dir"]),
        (["--run.name", "/x"], ["--run.name", "'/x'"]),
        ([f"{SOURCE}.env.agent.max-turns"], ["agent.max-turns", "needs a value"]),
        (["--orchestrator.batch-size", "20"], ["multiple", "group_size (8)"]),
        (["--orchestrator.train.source.3.ratio", "1"], ["source.3.ratio", "1 positions"]),
        (["--orchestrator.train.source.0.env.agent.runtime.type", "modal"], ["modal", "docker"]),
        (["--orchestrator.train.source.0.env.agent.retries.max-retries", "2"], ["env.retries"]),
        (
            [f"{SOURCE}.env.agent.harness.id", "bash", f"{SOURCE}.env.agent.harness.search"],
            ["agent.harness.search", "SERPER_API_KEY", "leave it out"],
        ),
        ([f"{SOURCE}.env.colour", "red"], ["no key", "colour"]),
        ([f"{SOURCE}.env.delt", "best"], ["did you mean `orchestrator.train.source.0.env.delta`?"]),
        ([f"{SOURCE}.env.taskset.tasks", "titanik"], ["taskset", "did you mean 'titanic'?"]),
        ([f"{SOURCE}.env.taskset.task-root", "x"], ["env.taskset.task_roots`?"]),
        ([f"{SOURCE}.env.agent.harness.formt", "x"], ["harness.format`?"]),
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


@pytest.mark.parametrize(
    ("args", "at", "value"),
    [
        (["--embedded.reward-to-go"], "embedded.reward_to_go", True),
        (["--embedded.reward-to-go", "false"], "embedded.reward_to_go", False),
        (["--embedded.reward-to-go", "--no-embedded.reward-to-go"], "embedded.reward_to_go", False),
        (["--ckpt"], "ckpt.interval", None),
        (["--ckpt.interval", "3"], "ckpt.interval", 3),
        (["--ckpt.interval", "3", "--no-ckpt"], "ckpt", None),
        (["--ckpt", "None"], "ckpt", None),
        (["--embedded.threads", "2", "--embedded.threads", "None"], "embedded.threads", None),
        (["--trainer.optim.lr=1e-4"], "trainer.optim.lr", 1e-4),
        (["--run.name", "7"], "run.name", "7"),
        ([f"{SOURCE}.name", "7"], "orchestrator.train.source.0.name", "7"),
        ([f"{SOURCE}.env.record-diffs"], "orchestrator.train.source.0.env.record_diffs", True),
        (
            [f"--no-{SOURCE[2:]}.env.record-diffs"],
            "orchestrator.train.source.0.env.record_diffs",
            False,
        ),
        (
            [f"{SOURCE}.env.taskset.tasks", "titanic", "digits"],
            "orchestrator.train.source.0.env.taskset.tasks",
            ["titanic", "digits"],
        ),
        (
            [f"{SOURCE}.env.taskset.tasks", "titanic,digits"],
            "orchestrator.train.source.0.env.taskset.tasks",
            ["titanic", "digits"],
        ),
        (
            [f"{SOURCE}.env.taskset.tasks", '["digits"]'],
            "orchestrator.train.source.0.env.taskset.tasks",
            ["digits"],
        ),
    ],
)
def test_flags_are_read_as_prime_rl_reads_them(
    args: list[str], at: str, value: object, good: Path
) -> None:
    here: object = built(f"@{good}", "--run.name", "r", *args)
    for part in at.split("."):
        here = here[int(part)] if isinstance(here, list) else getattr(here, part)
    assert here == value


def test_a_flag_fills_a_table_from_a_file(good: Path, tmp_path: Path) -> None:
    (tmp_path / "optim.toml").write_text('type = "sgd"\nlr = 0.5\n')
    config = built("@", str(good), "--trainer.optim", "@", str(tmp_path / "optim.toml"))
    assert (config.trainer.optim.type, config.trainer.optim.lr) == ("sgd", 0.5)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--max-steps", "3", "4"], ["--max-steps", "4"]),
        (["--max-steps"], ["--max-steps", "requires a value"]),
        (["--trainer", "x"], ["--trainer", "config group"]),
        (["--max-steps.x", "3"], ["--max-steps.x"]),
        (["--ckpt", "@"], ["@"]),
    ],
)
def test_a_flag_that_fits_nothing_is_one_line(
    good: Path, args: list[str], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        built(f"@{good}", *args)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_sft_refuses_settings_of_the_engine_that_it_does_not_read() -> None:
    args = ["--embedded.micro-batch-tokens", "64", "--embedded.threads", "1"]
    config = overrides.build(SFTRunConfig, overrides.parse(args, SFTRunConfig))
    assert config.embedded.micro_batch_tokens == 64
    for flag in ("--embedded.inference", "--embedded.port", "--inference"):
        with pytest.raises(ConfigError, match=flag):
            overrides.build(SFTRunConfig, overrides.parse([flag, "1"], SFTRunConfig))


def test_the_checkout_of_the_variable_is_named_in_the_config(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a resumed run, and `air eval RUN`, find it in another shell."""
    monkeypatch.setenv("AIR_MLGYM_ROOT", str(tmp_path / "variable"))
    tasks = "--orchestrator.train.source.0.env.taskset.tasks"
    flag = "--orchestrator.train.source.0.env.taskset.mlgym-root"

    def named(*args: str) -> Path | None:
        config = EmbeddedRun(built(f"@{good}", *args).named(), Progress(1)).config
        root: Path | None = config.orchestrator.train.source[0].env.taskset.mlgym_root  # type: ignore[attr-defined]
        return root

    assert named(tasks, "mlgym:titanic") == tmp_path / "variable"
    assert named(tasks, "mlgym:titanic", flag, str(tmp_path / "flag")) == tmp_path / "flag"
    assert named(tasks, "titanic") is None
    monkeypatch.delenv("AIR_MLGYM_ROOT")
    assert named(tasks, "mlgym:titanic") is None


@pytest.mark.parametrize("omp", ["", "5", "6,2"])
def test_all_usable_cores_train_and_half_of_them_sample(
    omp: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", omp)
    cores = int(omp[0]) if omp else len(os.sched_getaffinity(0))
    before = torch.get_num_threads()
    try:
        for threads, sampling, training in ((None, max(1, cores // 2), cores), (3, 3, 3)):
            config = ComputeConfig(threads=threads)
            config.set_threads()
            assert torch.get_num_threads() == sampling
            with config.training_threads():
                assert torch.get_num_threads() == training
            assert torch.get_num_threads() == sampling
    finally:
        torch.set_num_threads(before)


CAP = ("--embedded.duration-weight-cap", "4")


def test_weights_by_duration_are_off_unless_a_cap_is_set(good: Path, tmp_path: Path) -> None:
    assert not isinstance(built(f"@{good}").algorithm(), WithDurationWeights)
    config = built(f"@{good}", *CAP, "--embedded.kl.coefficient", "0.1")
    algorithm = config.algorithm()
    assert isinstance(algorithm, WithDurationWeights)
    assert algorithm.cap == 4.0
    assert algorithm.needs == {"reference"}  # the weights come after the penalty
    written = tmp_path / "config.json"
    written.write_text(overrides.dump(config.named()))
    resumed = built(f"@{written}", "--resume.step", "1")
    assert resumed.embedded.duration_weight_cap == 4.0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--embedded.duration-weight-cap", "1"], "greater than 1"),
        (["--embedded.duration-weight-cap", "inf"], "finite"),
        ([*CAP, "--embedded.deterministic"], "durations are measured"),
        (
            [*CAP, f"{SOURCE}.env.agent.harness.id", "mini-swe-agent"],
            'no source .* measures the durations of actions.*harness.id = "air"',
        ),
    ],
)
def test_weights_by_duration_that_cannot_be_had_are_refused(
    good: Path, flags: list[str], words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        built(f"@{good}", *flags)
    assert "duration_weight_cap" in str(caught.value)


def test_a_run_that_is_paid_for_measured_time_cannot_be_deterministic(good: Path) -> None:
    penalty = [f"{SOURCE}.env.time-penalty", "0.5"]
    with pytest.raises(
        ConfigError, match=r"time_penalty of a source's env: durations are measured"
    ):
        built(f"@{good}", *penalty, "--embedded.deterministic")
    built(f"@{good}", *penalty)
    built(f"@{good}", f"{SOURCE}.env.time-penalty", "0", "--embedded.deterministic")
