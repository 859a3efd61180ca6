"""Which evaluations are due, what their lines say, and which step is the best."""

from __future__ import annotations

from pathlib import Path

import pytest
import verifiers.v1 as vf

from air.errors import ConfigError, MissingError, UsageError
from air.train.config import overrides
from air.train.config.eval_config import EvalConfig, EvalSourceConfig
from air.train.config.run_config import RunConfig
from air.train.evaluation.periodic_evaluation import Evaluations, make_row
from air.train.evaluation.settings import find_checkpoint
from air.train.loop.rollout import Rollout
from air.trajectories import evaluations
from tests.rollouts import chain, payment


def config(**settings: object) -> EvalConfig:
    return EvalConfig.model_validate({"source": [{}], **settings})


def test_evaluations_are_due_before_every_interval_and_after() -> None:
    every = config(interval=3)
    assert [step for step in range(9) if every.due(step, 8)] == [0, 3, 6, 8]
    assert not config(skip_first_step=True).due(0, 8)


def test_the_best_step_has_the_highest_metric_and_a_checkpoint() -> None:
    rows = [
        {"step": 0, "reward": 0.9, "phi": 0.1},
        {"step": 2, "reward": 0.5, "phi": 0.3},
        {"step": 4, "reward": 0.7, "phi": None},
        {"step": 6, "reward": 0.7, "phi": 0.2},
    ]
    assert evaluations.best_step(rows, "reward", [2, 4, 6]) == 4  # the earliest of equal ones
    assert evaluations.best_step(rows, "reward", [2]) == 2
    assert evaluations.best_step(rows, "phi", [0, 4, 6]) == 6  # None is never the best
    assert evaluations.best_step(rows, "phi", [4]) is None
    assert evaluations.best_step(rows, "reward", [3]) is None
    assert evaluations.best_step(rows, "score", [2]) is None
    with pytest.raises(ConfigError, match=r"best_metric.*'score'.*choose one of phi, reward"):
        evaluations.check_metric(rows, "score")
    evaluations.check_metric(rows, "phi")


def test_a_metric_is_unknown_only_when_an_episode_of_each_source_ended_well() -> None:
    failed = {"step": 2, "episodes": 2, "failed_episodes": 2, "reward": None}
    evaluations.check_metric([failed], "reward/delta")
    assert evaluations.best_step([failed], "reward/delta", [2]) is None
    sources = {"a": {"episodes": 1, "failed_episodes": 1}, "b": {"episodes": 1}}
    half = {"step": 4, "episodes": 2, "failed_episodes": 1, "reward": 0.5, "sources": sources}
    evaluations.check_metric([half], "reward/delta")
    with pytest.raises(ConfigError, match="choose one of reward"):
        evaluations.check_metric([half | {"sources": {}}], "reward/delta")


def test_counts_are_summed_over_the_sources_and_other_metrics_averaged() -> None:
    def rollout(reward: float, **metrics: float) -> Rollout:
        trace = chain(1, [payment(3, delta=reward)])
        trace.metrics.update(metrics)
        return Rollout("s", "t", [trace])

    played = {
        "a": [rollout(1.0, cut_replies=1, turns=4), rollout(0.0, cut_replies=2, turns=2)],
        "b": [rollout(0.2, cut_replies=1, context_ends=1, cut_observations=7, refused_requests=2)],
    }
    row = make_row(3, played, seconds=1.0)
    counts = ("context_ends", "cut_replies", "cut_observations", "refused_requests", "episodes")
    assert [row[name] for name in counts] == [1, 4, 7, 2, 3]
    assert [row["sources"]["a"][name] for name in counts] == [0, 3, 0, 0, 2]
    assert (row["reward"], row["turns"]) == (pytest.approx((0.5 + 0.2) / 2), (3 + 1) / 2)


def test_an_evaluation_with_failures_loses_to_one_without() -> None:
    rows = [
        {"step": 1, "reward": 0.9, "episodes": 10, "failed_episodes": 5},
        {"step": 2, "reward": 0.2, "episodes": 10, "failed_episodes": 0},
        {"step": 3, "reward": 0.3, "episodes": 20, "failed_episodes": 0},
        {"step": 4, "reward": 0.8, "episodes": 10, "failed_episodes": 4},
    ]
    assert evaluations.best_step(rows, "reward", range(5)) == 3
    assert evaluations.best_step(rows, "reward", [1, 4]) == 4


def run_config(**of_eval: object) -> RunConfig:
    source = {"env": {"taskset": {"id": "air", "tasks": ["titanic"]}}}
    orchestrator = {"train": {"source": [source]}, "eval": {"source": [source | of_eval]}}
    sources = overrides.MergedSettings()
    overrides.put(sources, {"max_steps": 1, "orchestrator": orchestrator}, "run.toml")
    return overrides.build(RunConfig, sources)


def test_sources_of_evaluations_are_treated_as_those_of_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIR_MLGYM_ROOT", str(tmp_path))
    mlgym = {"taskset": {"id": "air", "tasks": ["mlgym:battleOfSexes"]}}
    held_out = run_config(env=mlgym).with_checkout().orchestrator.eval
    assert held_out is not None
    assert getattr(held_out.source[0].env.taskset, "mlgym_root", None) == tmp_path
    titanic = {"taskset": {"id": "air", "tasks": ["titanic"]}}
    boxes = {"agent": {"runtime": {"type": "subprocess"}}}
    assert run_config(env={**titanic, **boxes}).uses_process_boxes
    assert not run_config(env=titanic).uses_process_boxes
    harness = {"harness": {"id": "air", "history": 1}}
    with pytest.raises(ConfigError, match="history"):
        run_config(env={**titanic, "agent": harness})


def test_a_missing_task_of_an_evaluation_is_refused_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIR_MLGYM_ROOT", str(tmp_path))
    env = {"taskset": {"id": "air", "tasks": ["mlgym:battleOfSexes"]}}
    settings = config(source=[{"env": env}])
    played = Evaluations(settings, tmp_path, lambda s, _: s, seed=None, best_metric="reward")
    with pytest.raises(UsageError, match="no checkout of MLGym"):
        played.check_tasks()


def test_prompts_of_the_training_are_told_from_those_that_are_held_out(tmp_path: Path) -> None:
    """Training plays the seeds 0 and 1 of titanic and of a game; the evaluation of a game has its own."""

    def tasks(first_seed: int) -> dict[str, object]:
        names = ["titanic", "game:sokoban6"]
        taskset = {"tasks": names, "first_seed": first_seed, "examples_per_task": 2}
        return {"env": {"taskset": {"id": "air", **taskset}}}

    def shared(first_seed: int, **of_eval: object) -> list[str]:
        settings = config(source=[{**tasks(first_seed), **of_eval}])
        played = Evaluations(settings, tmp_path, lambda s, _: s, seed=None, best_metric="reward")
        trained = EvalSourceConfig.model_validate(tasks(0)).env
        prompts = played.trained_prompts(vf.load_environment(trained).taskset)
        return [prompt.data.id for prompt in prompts]

    assert shared(0) == ["titanic/0", "titanic/1"]
    assert shared(1) == ["titanic/1"]
    assert shared(0, num_examples=1) == ["titanic/0"]
    assert shared(2) == []


def test_a_run_without_evaluations_has_no_best_checkpoint(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoints" / "step_3"
    checkpoint.mkdir(parents=True)
    (checkpoint / "config.json").touch()
    assert find_checkpoint(str(tmp_path), 3) == (tmp_path, checkpoint)
    with pytest.raises(MissingError, match="none is the best"):
        find_checkpoint(str(tmp_path), "best")
    (tmp_path / "config.json").write_text('{"embedded": {"best_metric": "phi"}}')
    (tmp_path / evaluations.FILE).write_text('{"step": 3, "phi": 0.5}\n{"step": 9, "ph')
    assert find_checkpoint(str(tmp_path), "best") == (tmp_path, checkpoint)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"source": [{}, {}]}, "two sources have the name"),
        ({"source": [{"ratio": 2.0}]}, "ratio has no effect"),
        ({"source": [{}], "num_examples": 0}, "1 or more, or -1"),
        ({"source": []}, "at least 1 item"),
        ({"source": [{}], "retrigger_on_resume": True}, "does not have"),
    ],
)
def test_settings_that_have_no_effect_are_refused(settings: dict[str, object], words: str) -> None:
    sources = overrides.MergedSettings()
    train = {"source": [{}]}
    given = {"max_steps": 1, "orchestrator": {"train": train, "eval": settings}}
    overrides.put(sources, given, "run.toml")
    with pytest.raises(ConfigError, match=words):
        overrides.build(RunConfig, sources)


def test_a_resolved_config_can_be_read_again() -> None:
    sources = overrides.MergedSettings()
    orchestrator = {"train": {"source": [{}]}, "eval": {"source": [{}], "interval": 5}}
    overrides.put(sources, {"max_steps": 1, "orchestrator": orchestrator}, "run.toml")
    built = overrides.build(RunConfig, sources)
    again = RunConfig.model_validate_json(overrides.dump(built))
    assert again.orchestrator.eval == built.orchestrator.eval
