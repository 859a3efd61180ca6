"""Secret splits: one secret of an installation, a seed for each task, and the scales that belong to them."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from air.errors import ConfigError
from air.rewards.normalise import phi_on
from air.sandbox.pool.box_pool import Pool
from air.tasks import splits
from air.tasks.grading import Grader
from air.tasks.measured_scale import moved_scale, on_split
from air.tasks.spec import RewardScale
from air.tasks.splits import PUBLIC_SPLIT, VARIABLE, Splits, chosen, recorded
from tests.unit.tasks.conftest import MakeTask


def test_all_who_ask_at_once_get_the_one_secret_of_the_installation(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE)
    with ThreadPoolExecutor(8) as threads:
        (secret,) = {one.secret for one in threads.map(lambda _: chosen(None), range(16))}
    file = cache / "split_secret"
    assert file.read_text() == f"{secret}\n"
    assert file.stat().st_mode & 0o777 == 0o600
    assert len(bytes.fromhex(secret)) == 32
    assert chosen("my own").secret == "my own"
    monkeypatch.setenv(VARIABLE, "of the run")
    assert chosen(None).secret == "of the run"
    file.write_text("half a sec")
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(ConfigError, match=r"split_secret: holds no secret .* — restore it"):
        chosen(None)


def test_seeds_differ_by_task_and_secret_and_only_the_public_one_is_known() -> None:
    one, other = Splits("a secret"), Splits("a secret.")
    seeds = {s.of(task).seed for s in (one, other) for task in ("titanic", "digits")}
    assert len(seeds) == 4
    assert all(2**40 < seed < 2**63 for seed in seeds)
    assert one.of("titanic") == Splits("a secret").of("titanic")
    assert {one.name, other.name, splits.PUBLIC} == {one.of("x").name, other.of("x").name, "public"}
    assert "secret" not in repr(one) + one.name
    assert str(one.of("titanic").seed) not in repr(one.of("titanic"))
    assert Splits("public").of("titanic") == PUBLIC_SPLIT
    assert PUBLIC_SPLIT.seed == 1912
    gradings = [one.of("titanic").grading_seed(number) for number in range(3)]
    assert len({*gradings}) == 3
    assert all(0 <= seed < 2**31 for seed in gradings)
    assert [PUBLIC_SPLIT.grading_seed(number) for number in range(3)] == [0, 1, 2]


def test_a_record_finds_its_secret_or_says_that_it_is_not_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(VARIABLE)
    own, run = chosen(None), Splits("of a run")
    assert recorded("public", Path("x.jsonl")).of("titanic") == PUBLIC_SPLIT
    assert recorded(own.name, Path("x.jsonl")) == own
    with pytest.raises(ConfigError, match=rf"^x\.jsonl: .* split {run.name}.* — set {VARIABLE}"):
        recorded(run.name, Path("x.jsonl"))
    monkeypatch.setenv(VARIABLE, "of a run")
    assert recorded(run.name, Path("x.jsonl")) == run
    assert recorded(own.name, Path("x.jsonl")) == own


@pytest.mark.parametrize(
    ("scale", "recorded", "measured", "baseline", "target"),
    [
        ({}, (0.5, 0.8), (0.4, 0.7), 0.4, 0.8),  # both solutions lost 0.1
        ({}, (0.5, 0.8), (0.5, 0.95), 0.5, 1.1),  # the way between them is half as long again
        ({}, (0.5, 0.8), (0.6, 0.6), 0.6, 0.8),  # no way at all: half of the declared one at least
        ({}, (0.5, 0.5), (0.6, 0.6), 0.6, 1.0),  # only one solution
        (
            {},
            (0.6, 0.8),
            (0.5, 0.7),
            0.4,
            0.8,
        ),  # the baseline solution is not the declared baseline
        (
            {"normalise": "log-gap", "optimum": 0.0, "direction": "lower", "target": 0.05},
            (0.5, 0.005),
            (0.25, 0.0025),
            0.25,
            0.025,
        ),
    ],
)
def test_the_reference_solutions_keep_their_worth_on_another_split(
    scale: dict[str, object],
    recorded: tuple[float, float],
    measured: tuple[float, float],
    baseline: float,
    target: float,
) -> None:
    declared = RewardScale(**{"direction": "higher", "baseline": 0.5, "target": 0.9} | scale)
    moved = moved_scale(declared, recorded, measured)
    assert (moved.baseline, moved.target) == (pytest.approx(baseline), pytest.approx(target))
    assert phi_on(moved, measured[0]) == pytest.approx(phi_on(declared, recorded[0]))


SOLVERS = """
[[solver]]
name = "baseline"
script = "true"
val = 1.0
test = 1.0
[[solver]]
name = "good"
script = "echo 3 > answer.txt"
val = 3.0
test = 3.0
"""
SHIFTED = """
seed = int((here / "data" / "seed.txt").read_text())
end(0, json.dumps({"metrics": {"score": float(given) + (0 if seed == 1912 else 1 + seed % 7)}}))
"""
SEED = """
def prepare(agent_dir, grader_dir, split_seed):
    (grader_dir / "seed.txt").write_text(str(split_seed))
"""


async def test_baseline_and_target_are_measured_once_for_a_secret_split(
    make_task: MakeTask, caplog: pytest.LogCaptureFixture
) -> None:
    task = make_task(SHIFTED, data=SEED)
    secret = Splits("a secret").of("tiny")
    shift = 1 + secret.seed % 7
    async with Pool(2) as boxes, Pool(2) as graders:
        ways = boxes, Grader(graders, "process"), "process"
        assert (await on_split(task, secret, *ways)).baseline == 1.0  # type: ignore[arg-type]
        assert "tiny has no recorded solutions" in caplog.text
        (task.folder / "solvers.toml").write_text(SOLVERS)
        both = await asyncio.gather(*(on_split(task, secret, *ways) for _ in range(2)))  # type: ignore[arg-type]
        both.append(await on_split(task, secret, *ways))  # type: ignore[arg-type]
        assert [(one.baseline, one.target) for one in both] == [(1.0 + shift, 2.0 + shift)] * 3
        assert boxes.stats.started == 2
        assert both[0].split == secret
        assert (await on_split(task, PUBLIC_SPLIT, *ways)).baseline == 1.0  # type: ignore[arg-type]
        assert boxes.stats.started == 2
    assert task.split == PUBLIC_SPLIT
