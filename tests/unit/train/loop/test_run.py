"""The order of what a run does in a step, with resources that only record and fail."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import verifiers.v1 as vf

from air.errors import InferenceError, InfrastructureError
from air.train.algorithms import GRPOConfig
from air.train.config.run_config import RunConfig
from air.train.loop.further_models import FurtherModels
from air.train.loop.progress import Progress
from air.train.loop.rollout import Group, Rollout, Source
from air.train.loop.run import EmbeddedRun
from air.train.loop.samples import AlgorithmInputs, samples
from air.train.loop.step_player import Batch, PlayedStep, StepPlayer
from tests.rollouts import chain, episode, payment
from tests.unit.train.loop.test_further_models import Places


class Fakes:
    """Server, trainer and evaluations of a run; `log` has their calls, and those in `failing` raise."""

    def __init__(self, *failing: str) -> None:
        self.failing, self.log = failing, list[str]()
        self.trains_zeros = self.greedy = False
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
        return vf.ModelContext(model="m", client=vf.EvalClientConfig(base_url="http://unused"))


def new_run(folder: Path, overlap: int = 0, **embedded: Any) -> EmbeddedRun:
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
        "embedded": embedded,
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


class Attempts:
    """An environment whose tasks are texts; `rewards` has the two rewards of each attempt at a task."""

    def __init__(self, rewards: Mapping[str, Sequence[tuple[float, float]]]) -> None:
        self._rewards = {
            task: [r for pair in pairs for r in pair] for task, pairs in rewards.items()
        }
        self.played: dict[str, list[Any]] = {task: [] for task in rewards}

    def slots(self, task: Any) -> list[str]:
        return [task.data.name]

    async def run_slot(self, slot: str, _: Any) -> Any:
        played = self.played[slot]
        played.append(chain(1, [payment(3, delta=self._rewards[slot][len(played)])]))
        return episode(played[-1])


def test_a_group_is_played_again_until_its_rewards_differ(tmp_path: Path) -> None:
    same, differ = (0.5, 0.5), (0.0, 1.0)
    rewards = {"at once": [differ], "later": [same, same, differ], "never": [same] * 4}
    env = Attempts(rewards)
    tasks = [SimpleNamespace(data=SimpleNamespace(name=name)) for name in rewards]
    source: Any = Source("s", 1.0, 2, env, tasks)
    run, fakes = new_run(tmp_path, replays_without_spread=3), Fakes()
    batch = Batch(1, [(source, task) for task in tasks], {})
    gate = asyncio.Semaphore(1)
    groups = asyncio.run(run._player.play(batch, fakes.resources(), gate)).groups
    # The attempt with spread is the last: a fourth one of "later" would have no reward to give.
    assert {name: len(played) for name, played in env.played.items()} == Counter(
        {name: 2 * len(pairs) for name, pairs in rewards.items()}
    )
    assert [group.replays for group in groups] == [0, 2, 3]
    kept = [[id(rollout.trace) for rollout in group.rollouts] for group in groups]
    last = [[id(trace) for trace in played[-2:]] for played in env.played.values()]
    assert kept == last
    trained = samples(groups, GRPOConfig().build(), 1.0)
    assert [sample.nodes[0] for sample in trained] == [
        trace.nodes[0] for name in ("at once", "later") for trace in env.played[name][-2:]
    ]
