"""The order of what a run does in a step, with resources that only record and fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from air.errors import InferenceError, InfrastructureError
from air.train.config.run_config import RunConfig
from air.train.loop.further_models import FurtherModels
from air.train.loop.progress import Progress
from air.train.loop.rollout import Group, Rollout
from air.train.loop.run import EmbeddedRun
from air.train.loop.samples import AlgorithmInputs
from air.train.loop.step_player import Batch, PlayedStep, StepPlayer
from tests.rollouts import chain, payment
from tests.unit.train.loop.test_further_models import Places


class Fakes:
    """Server, trainer and evaluations of a run; `log` has their calls, and those in `failing` raise."""

    def __init__(self, *failing: str) -> None:
        self.failing, self.log = failing, list[str]()
        self.trains_zeros = False
        self.policy = SimpleNamespace(model=SimpleNamespace(dtype="torch.float32"))
        self.config = SimpleNamespace(
            sampling=SimpleNamespace(temperature=1.0, max_completion_tokens=1)
        )

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        self.log.append("exclusive")
        yield

    def ready(self) -> None:
        pass

    def step_metrics(self) -> dict[str, float]:
        self.log.append("step_metrics")
        return {}

    def update_weights(self) -> int:
        self._call("push", InferenceError)
        return 1

    def step(self, *_: Any) -> dict[str, float]:
        self._call("policy", InfrastructureError)
        return {}

    def train(self, *_: Any) -> dict[str, float]:
        self._call("values", InfrastructureError)
        return {}

    def trains_policy(self, _: int) -> bool:
        return True

    def due(self, *_: Any) -> bool:
        return True

    def episodes(self) -> int:
        return 1

    async def play(self, *_: Any) -> dict[str, float]:
        self.log.append("evaluation")
        return {}

    def summary(self, _: Any) -> str:
        return "evaluated"

    def _call(self, name: str, error: type[Exception]) -> None:
        self.log.append(name)
        if name in self.failing:
            raise error(name)

    def resources(self, models: Any = None) -> Any:
        return SimpleNamespace(
            server=self,
            trainer=self,
            further_models=models or self,
            policy=self.policy,
            tokens=None,
            evaluations=self,
        )


class WithoutClient(StepPlayer):
    """Plays episodes that need no client of a model."""

    def context(self, *_: Any) -> Any:
        return None


def new_run(folder: Path, overlap: int = 0) -> EmbeddedRun:
    source = {"env": {"taskset": {"id": "air"}, "agent": {"harness": {"id": "air"}}}}
    orchestrator = {
        "batch_size": 2,
        "group_size": 2,
        "algo": {"type": "rae"},
        "max_off_policy_steps": overlap,
        "train": {"source": [source]},
    }
    settings = {
        "max_steps": 2,
        "output_dir": str(folder),
        "run": {"name": "r"},
        "model": {"name": "m"},
        "orchestrator": orchestrator,
    }
    run = EmbeddedRun(RunConfig.model_validate(settings).named(), Progress(2))
    run._player = WithoutClient(run.config, run.progress)
    run.folder.mkdir(parents=True)
    return run


def train(run: EmbeddedRun, fakes: Fakes) -> None:
    traces = [chain(1, [payment(3, delta=delta)]) for delta in (0.0, 1.0)]
    groups = [Group([Rollout("s", "t", [trace]) for trace in traces], None)]
    played = PlayedStep(Batch(1, [], {}), groups, 1.0)
    seconds = {"seconds_weights": 0.0, "seconds_rollout": 1.0}
    asyncio.run(run._train(played, AlgorithmInputs(), fakes.resources(), seconds))


def rows(run: EmbeddedRun) -> list[Any]:
    file = run.folder / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_a_failed_update_leaves_no_trace(tmp_path: Path) -> None:
    run, fakes = new_run(tmp_path), Fakes("policy")
    before = run._algorithm.state_dict()
    with pytest.raises(InfrastructureError, match="policy"):
        train(run, fakes)
    assert fakes.log == ["exclusive", "policy"]
    assert run._algorithm.state_dict() == before
    assert (run._done, rows(run)) == (0, [])
    train(run, Fakes())
    assert run._algorithm.state_dict() != before


@pytest.mark.parametrize("failing", ["values", "push"])
def test_a_failure_after_the_update_keeps_the_steps_lines(tmp_path: Path, failing: str) -> None:
    run = new_run(tmp_path, overlap=1)
    with pytest.raises((InferenceError, InfrastructureError), match=failing):
        train(run, Fakes(failing))
    assert run._done == 1
    assert [row["step"] for row in rows(run)] == [1]
    assert len((run.folder / "groups.jsonl").read_text().splitlines()) == 1


def test_sampling_stops_only_for_models_that_score_here(tmp_path: Path) -> None:
    run, fakes = new_run(tmp_path), Fakes()
    run._score([], fakes.resources(FurtherModels({}, None, greedy=True, temperature=1.0)))
    assert fakes.log == []
    teacher = FurtherModels({"teacher": Places()}, None, greedy=False, temperature=1.0)
    run._score([], fakes.resources(teacher))
    assert fakes.log == ["exclusive"]


def test_an_evaluation_does_not_count_for_the_next_step(tmp_path: Path) -> None:
    run, fakes = new_run(tmp_path), Fakes()
    asyncio.run(run._evaluate(fakes.resources()))
    assert fakes.log == ["evaluation", "step_metrics"]
