"""Provides air's tasks to the library `verifiers`, as its plugins taskset and task. Their methods, which
`verifiers` calls, start, grade and reward an episode."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import verifiers.v1 as vf

from air import tasks
from air.env.config import AirTasksetConfig
from air.env.recording import started
from air.env.runtimes import verifiers_owned
from air.env.runtimes.box_runtime import episode_of, gateway_of
from air.errors import UsageError
from air.tasks.spec import TaskSpec
from air.worlds import sources
from air.worlds.research.observations import describe
from air.worlds.sources import is_world

LAST_GRADINGS = "[end of the episode]"
"""If an episode failed, its trajectory (air's record of it) and the failure breaker name the action at which
it failed. If that happened in the gradings at the end of the episode, they contain this text instead."""


class AirData(vf.TaskData):
    """The data of one prompt: the task's text and id, a digest of its files, and the episode's seed.
    `verifiers` writes these fields into its traces (records of episodes), so they must not contain labels,
    answers or paths."""

    task_id: str = ""
    """The id of the task."""
    task_hash: str = ""
    """The SHA-256, in hex, of the whole task: of the files in the folder of a research task, or of the
    definition of any other task."""
    seed: int = 0
    """The seed with which the episode starts. In worlds such as games, it determines the random choices."""


class AirTask(vf.Task[AirData]):
    """A research task, or a task in another world such as a game, with the methods that `verifiers` calls
    during an episode. The episode's state is not stored here but on the runtime (`verifiers`' name for the
    place where commands run): a box (container) from a pool of `ResearchEnv`, a `NoBox` for episodes without
    commands, or a runtime that the command `vf-validate` or `vf-debug` started."""

    spec: TaskSpec | None = None
    """The specification of a research task; it is never serialised. None for all other tasks, and if
    `verifiers`, instead of `AirTaskset`, made this object."""

    async def setup(self, trace: vf.Trace[Any, Any, Any], runtime: vf.Runtime) -> None:
        """Starts the episode: resets its world (for a research task, copies the task's files into the box),
        then writes the start of the trajectory, air's record of the episode. `trace` is `verifiers`'
        record."""
        if trace.agent.name in verifiers_owned.COMMANDS and not hasattr(runtime, "episode"):
            if is_world(self.data.task_id):
                raise UsageError(
                    f"{self.data.task_id} is a world without a box, which has nothing to validate",
                    remedy=f"play it with `air shell {self.data.task_id}`",
                )
            spec = self.spec or tasks.load(self.data.task_id)
            runtime.episode = await verifiers_owned.open_episode(spec, runtime)
        episode = episode_of(runtime)
        episode.trace = trace
        await episode.reset(self.data.seed)
        if gateway := gateway_of(runtime):
            gateway.begin(trace)
        harness = trace.agent.config.harness
        trace.info["air"] = {
            "episode": episode.id,
            "task": self.data.task_id,
            "isolation": episode.isolation,
        }
        episode.recorder.write(
            "start",
            **started(episode),
            trace=trace.id,
            task=self.data.task_id,
            task_hash=self.data.task_hash,
            seed=self.data.seed,
            max_turns=episode.max_turns,
            system=episode.system(self.data.system_prompt),
            prompt=episode.prompt(str(trace.task.data.prompt)),
            model=trace.agent.config.model,
            harness="air" if harness is None else harness.id,
            worker=os.getpid(),
        )
        await episode.begin()

    async def finalize(self, trace: vf.Trace[Any, Any, Any], runtime: vf.Runtime) -> None:
        """Ends the episode (a research task is graded a last time), and stores the episode's summary in the
        trace, `verifiers`' record of the episode. Raises the error with which a grading failed, such as
        InfrastructureError."""
        episode = episode_of(runtime)
        if (gateway := gateway_of(runtime)) and gateway.failure:
            raise gateway.failure  # verifiers ignores errors that are raised after it has stopped an episode
        episode.why_ended = episode.why_ended or str(trace.stop_condition)
        with episode.performing(LAST_GRADINGS):
            await episode.finish()
        trace.info["air"] = episode.summary()

    async def validate(self, runtime: vf.Runtime) -> bool:
        """Checks the task for the command `vf-validate`: runs two recorded reference solutions, the baseline
        and the best, in the runtime. Returns whether both reach their recorded scores, and the best is better
        than the baseline. Raises UsageError if the runtime belongs to an episode with an agent."""
        episode = episode_of(runtime)
        if not isinstance(episode, verifiers_owned.UnplayedEpisode):
            raise UsageError(
                "a task cannot be validated in a lent box, which belongs to an episode"
            )
        return await episode.check()

    @vf.reward
    async def terms(
        self, trace: vf.Trace[Any, Any, Any], runtime: vf.Runtime | None = None
    ) -> dict[str, float]:
        """Returns the terms of the episode's reward by name; the reward is their sum. If `runtime` is None,
        as in the command `vf-replay`, reads them from the trace, `verifiers`' record of the episode."""
        return dict(_summary(trace)["terms"]) if runtime is None else episode_of(runtime).rewards

    @vf.metric
    async def facts(
        self, trace: vf.Trace[Any, Any, Any], runtime: vf.Runtime | None = None
    ) -> dict[str, float]:
        """Returns the metrics of the episode (scores, counts and times) by name. If `runtime` is None, as in
        the command `vf-replay`, reads them from the trace, `verifiers`' record of the episode."""
        return dict(_summary(trace)["metrics"]) if runtime is None else episode_of(runtime).metrics


def _summary(trace: vf.Trace[Any, Any, Any]) -> dict[str, Any]:
    """Returns the summary of an episode, which was made by `Episode.summary`, from `trace`, `verifiers`'
    record of it. Raises UsageError if there is none, because an infrastructure error ended the episode, or an
    older version of air recorded it."""
    summary = trace.info.get("air", {})
    if "terms" not in summary:
        raise UsageError(
            f"trace {trace.id} has no rewards of air",
            remedy="play it again: it failed, or an older air made it",
        )
    return dict(summary)


class AirTaskset(vf.Taskset[AirTask, AirTasksetConfig]):
    """The prompts of a run. Each is a task object with a seed, from which `verifiers` runs episodes. The
    settings define them: `examples_per_task` prompts from each task, with different seeds."""

    def load(self) -> Iterable[AirTask]:
        """Yields one task object for each prompt. The tasks take turns, so that in the first N prompts, for
        any N, each task has about the share that its weight gives it. Raises MissingError if a task does not
        exist."""
        config = self.config
        weights: dict[str, float] = {}
        names: list[str] = []
        for written in config.tasks:
            members = tasks.expanded([written], config.harbor)
            names += members
            for name in members:
                weights[name] = weights.get(name, 0.0) + config.weights.get(written, 1.0)
        makers = {name: self._prompt_maker(name) for name in weights}
        for name, number in turns(weights, self.config.examples_per_task * len(names)):
            yield makers[name](number)

    def _prompt_maker(self, name: str) -> Callable[[int], AirTask]:
        """Returns a function that makes the prompts of the task with the id `name`. (A prompt is a task
        object with a seed, from which `verifiers` runs episodes.) It takes a prompt's number (0, 1, …), which
        is added to the task's first seed, and returns the task object."""
        config = self.config
        if is_world(name):
            world = sources.load(name)
            first = config.first_seed
            first += sources.VALIDATION_SEED if config.purpose == "evaluation" else 0
            return lambda number: self._task(
                world.id, world.id, world.instructions, world.digest, first + number, world.seconds
            )
        spec = config.research_task(name)
        prompt, seconds = describe(spec), spec.limits.episode_seconds

        def research(number: int) -> AirTask:
            seed = config.first_seed + number
            task = self._task(spec.id, spec.id, prompt, spec.hash, seed, seconds)
            task.spec = spec
            return task

        return research

    def _task(
        self, task_id: str, name: str, prompt: str, digest: str, seed: int, seconds: float
    ) -> AirTask:
        data = AirData(
            id=f"{task_id}/{seed}",
            name=name,
            prompt=prompt,
            task_id=task_id,
            task_hash=digest,
            seed=seed,
            timeout=vf.TaskTimeout(agent=seconds),
        )
        return AirTask(data, self.config.task)


def turns(weights: Mapping[str, float], count: int) -> Iterator[tuple[str, int]]:
    """Yields `count` pairs (name, number of earlier pairs with the same name). Each name gets a share of the
    pairs that is proportional to its weight, spread as evenly as possible: with the weights 2 for `a` and 1
    for `b`, the pairs are `("a", 0)`, `("b", 0)`, `("a", 1)`, …. With equal weights, the names take turns in
    order."""
    taken = dict.fromkeys(weights, 0)
    for _ in range(count):
        # The name whose next turn is due first; `min` takes the first of equal ones.
        name = min(weights, key=lambda each: (taken[each] + 0.5) / weights[each])
        yield name, taken[name]
        taken[name] += 1
