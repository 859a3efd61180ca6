"""Estimates a training run before it starts: the number of concurrent boxes (agents' sandboxes), the duration
of a training step, and the age of episodes. air refuses runs that would take absurdly long.

The age of an episode is the number of training steps that the trainer takes while the episode waits and runs.
The estimate assumes a steady state in which every episode takes its whole time limit.

A stream i is one task of one source of prompts, with n_i episodes of L_i seconds in each step. A resource r
has size_r units, and running episodes occupy them. The resources are the boxes of a source, GPU slots
(several boxes may share a GPU), the boxes of this machine, and the allowed number of concurrent episodes ("in
flight"). An episode occupies u_i units: 1, or for GPU slots the number of GPUs of its box. Then:

    seconds of a step     S = max over resources r of  (sum of n_i L_i u_i over streams i that use r) / size_r
    running episodes      sum of n_i L_i / S over all streams i;  the other w episodes in flight wait for r*,
                          the resource with the maximum
    age of an episode     L_i / S steps, plus w / (sum of n_j over streams j that use r*) steps if the episode
                          waits for r* (Little's law)

If each step waits for its own episodes, S is at least the longest time limit L_i. Ages depend only on ratios
of times, so they also hold if all episodes are faster than their time limits by the same factor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from air.errors import ConfigError

LONGEST_STEP = 7 * 86_400.0
LONGEST_RUN = 365 * 86_400.0


@dataclass(frozen=True)
class Task:
    """One task in the estimate: the time limit of an episode, and the number of GPUs that its box (agent's
    sandbox) needs."""

    name: str
    seconds: float
    """The time limit of an episode, in seconds."""
    gpus: int = 0
    """The number of GPUs that one box (agent's sandbox) of this task needs."""


@dataclass(frozen=True)
class Source:
    """One source of prompts (`[[orchestrator.train.source]]` in the run file) in the estimate: its tasks,
    boxes (agents' sandboxes) and GPUs."""

    name: str
    tasks: tuple[Task, ...]
    ratio: float = 1.0
    group_size: int = 1
    boxes: int | None = None
    """The largest number of boxes (agents' sandboxes) that all worker processes of the source together may
    run at the same time. None: unknown; the estimate then assumes one box for each running episode."""
    gpus: tuple[str, ...] | None = ()
    """The names of the GPUs that boxes (agents' sandboxes) can use. None: unknown (the boxes are on another
    machine)."""
    slots_per_gpu: int = 1
    elsewhere: bool = False
    """Whether the boxes (agents' sandboxes) of this source run on another machine."""


@dataclass(frozen=True)
class Load:
    """The input of the estimate: the sources of prompts of a run, and the numbers of episodes, boxes (agents'
    sandboxes) and steps."""

    sources: tuple[Source, ...]
    batch_size: int
    """Number of episodes in one step."""
    in_flight: int
    """Largest number of episodes that run or wait at the same time."""
    host_boxes: int
    """The maximum number of concurrent boxes (agents' sandboxes) on this machine."""
    bound: int | None
    """The value of `max_off_policy_steps`, the maximum age of an episode in training steps; older episodes
    are dropped. None: each step waits for its own episodes, so no episode is dropped."""
    max_steps: int | None = None
    """Number of steps of the run. None: no limit."""


@dataclass(frozen=True)
class Age:
    """The estimated age of the episodes of one task at their end: the number of training steps that the
    trainer takes while such an episode waits and runs."""

    name: str
    steps: float
    share: float
    """The number of the task's episodes divided by the number of all episodes of the run, from 0 to 1."""


@dataclass(frozen=True)
class Throughput:
    """The estimate for a run: its boxes (agents' sandboxes), the duration of a training step, and the ages of
    episodes."""

    boxes: int
    """The largest number of boxes (agents' sandboxes) that run at the same time."""
    gpu_slots: int | None
    """The number of GPU slots: how many boxes (agents' sandboxes) with one GPU each can run at the same time.
    `slots_per_gpu` boxes can share a GPU; if sources with the same GPUs have different values of this
    setting, the largest value counts. None: unknown."""
    step_seconds: float
    fullest: str
    """The resource that limits the duration of a step, in words, such as "the boxes of source NAME"."""
    ages: tuple[Age, ...]
    bound: int | None
    max_steps: int | None = None

    @property
    def ages_over_bound(self) -> tuple[Age, ...]:
        """The ages that exceed `bound`, the value of `max_off_policy_steps`; empty if `bound` is None. There
        is one age for each task of each source of prompts. If the age of a task is too large, prime-rl drops
        those of its episodes that use their whole time limit."""
        return () if self.bound is None else tuple(a for a in self.ages if a.steps > self.bound)

    def lines(self) -> list[str]:
        """Returns the estimate as lines of text, to be printed for the user."""
        slots = "unknown" if self.gpu_slots is None else str(self.gpu_slots)
        rows = [
            f"boxes at once {self.boxes}, with a GPU {slots}",
            f"a step takes at most {_time(self.step_seconds)}, limited by {self.fullest}; less if episodes "
            "end before their time limits",
        ]
        if self.bound is None:
            return [*rows, "a step waits for its own episodes: none is off-policy"]
        oldest = max(self.ages, key=lambda age: age.steps)
        rows.append(
            f"an episode of {oldest.name} ends up to {oldest.steps:.1f} steps old; older than {self.bound} "
            "(max_off_policy_steps) is dropped"
        )
        rows += [
            f"warning: episodes of {age.name} that use all their time are {age.steps:.1f} steps old and are "
            f"dropped: shorten agent.timeout.rollout, or raise max_off_policy_steps"
            for age in self.ages_over_bound
        ]
        return rows

    def absurd(self) -> str:
        """Returns the reason why the run must be refused, or an empty string if the run is acceptable. A run
        is refused if a step would take more than 7 days, if the run would take more than 365 days, or if more
        than half of the episodes would be too old at their end and therefore dropped."""
        run = self.step_seconds * (self.max_steps or 1)
        if self.step_seconds > LONGEST_STEP or run > LONGEST_RUN:
            return (
                f"a step could take {_time(self.step_seconds)}, and the run {_time(run)}, limited by "
                f"{self.fullest}: give more boxes or GPU slots, shorten "
                "agent.timeout.rollout to what episodes need, or lower batch_size"
            )
        lost = sum(age.share for age in self.ages_over_bound)
        if lost > 0.5:
            return (
                f"{lost:.0%} of the episodes would be older than max_off_policy_steps ({self.bound}) when "
                "they end, and be dropped: lower orchestrator.concurrency.max_inflight towards batch_size, "
                "give more boxes or GPU slots, or raise max_off_policy_steps"
            )
        return ""


@dataclass(frozen=True)
class _Stream:
    name: str
    source: Source
    task: Task
    episodes: float


@dataclass(frozen=True)
class _Place:
    name: str
    count: int
    streams: tuple[_Stream, ...]
    by_gpus: bool = False

    def seconds(self) -> float:
        return sum(
            s.episodes * s.task.seconds * (s.task.gpus if self.by_gpus else 1) for s in self.streams
        ) / max(1, self.count)


def impossible(load: Load) -> str:
    """Returns the reason why some episode could never start, or an empty string if all episodes can start. An
    episode cannot start if its box (sandbox) needs more GPUs than its source of prompts has."""
    for source in load.sources:
        for task in source.tasks:
            if source.gpus is not None and task.gpus > len(source.gpus):
                return (
                    f"source {source.name}: a box of {task.name} takes {task.gpus} GPUs, and the boxes have "
                    f"{len(source.gpus)}: name more under env.gpus, or take the task out"
                )
    return ""


def plan(load: Load) -> Throughput:
    """Estimates how many boxes (agents' sandboxes) a run uses at the same time, the duration of a step, and
    the ages of episodes (in training steps) at their end. Must only be called if all episodes can start, that
    is, if `impossible(load)` returns an empty string."""
    streams = _streams(load)
    places = _places(load, streams)
    fullest = max(places, key=_Place.seconds)
    seconds = fullest.seconds()
    if load.bound is None:
        seconds = max(seconds, *(s.task.seconds for s in streams))
    busy = sum(s.episodes * s.task.seconds for s in streams) / seconds
    waiting = max(0.0, load.in_flight - busy) / sum(s.episodes for s in fullest.streams)
    ages = tuple(
        Age(
            s.name,
            s.task.seconds / seconds + (waiting if s in fullest.streams else 0.0),
            s.episodes / sum(each.episodes for each in streams),
        )
        for s in streams
    )
    own = [load.in_flight if s.boxes is None else s.boxes for s in load.sources]
    here = [b for b, s in zip(own, load.sources, strict=True) if not s.elsewhere]
    boxes = min(load.in_flight, sum(own) - sum(here) + min(load.host_boxes, sum(here)))
    users = _gpu_users(load)
    unknown = any(source.gpus is None for source in users)
    slots = None if unknown else sum(_slots(users).values())
    return Throughput(boxes, slots, seconds, fullest.name, ages, load.bound, load.max_steps)


def check(load: Load) -> Throughput:
    """Estimates a run, and returns the estimate.
    Raises ConfigError if an episode could never start, or the run would take too long or drop most
    episodes."""
    if reason := impossible(load) or (throughput := plan(load)).absurd():
        raise ConfigError(reason, where="plan")
    return throughput


def workers(*, most: int | None, multiplex: int, in_flight: int) -> int:
    """Returns the number of worker processes that prime-rl starts for one source of prompts. `in_flight` is
    the number of concurrent episodes. One process runs at most `multiplex` episodes; when every process runs
    90 % of this number, prime-rl starts another process. `most` is the maximum number of processes; None: no
    limit."""
    processes = max(1, math.ceil(in_flight / (0.9 * multiplex)))
    return processes if most is None else min(processes, most)


def _streams(load: Load) -> list[_Stream]:
    """Returns a `_Stream` for each task of each source of prompts: the number of the task's episodes in one
    training step, with the task's time limit and GPUs. The prompts of a step are divided among the sources in
    proportion to their setting `ratio`, and equally among the tasks of a source."""
    weights = [source.ratio * source.group_size for source in load.sources]
    return [
        _Stream(
            f"{source.name}/{task.name}" if len(source.tasks) > 1 else source.name,
            source,
            task,
            load.batch_size * weight / sum(weights) / len(source.tasks),
        )
        for source, weight in zip(load.sources, weights, strict=True)
        for task in source.tasks
    ]


def _places(load: Load, streams: Sequence[_Stream]) -> list[_Place]:
    places = [_Place("the episodes in flight", load.in_flight, tuple(streams))]
    here = tuple(s for s in streams if not s.source.elsewhere)
    if here:
        places.append(_Place("this machine's boxes (AIR_MAX_BOXES)", load.host_boxes, here))
    for source in load.sources:
        if source.boxes is not None:
            own = tuple(s for s in streams if s.source is source)
            places.append(_Place(f"the boxes of source {source.name}", source.boxes, own))
    for gpus, count in _slots(_gpu_users(load)).items():
        mine = tuple(s for s in streams if s.source.gpus == gpus and s.task.gpus)
        places.append(_Place(f"the slots of GPU {', '.join(gpus)}", count, mine, by_gpus=True))
    return places


def _gpu_users(load: Load) -> list[Source]:
    """Returns the sources of prompts with at least one task whose box (sandbox) needs a GPU."""
    return [source for source in load.sources if any(task.gpus for task in source.tasks)]


def _slots(sources: Sequence[Source]) -> dict[tuple[str, ...], int]:
    """Returns the number of GPU slots (places for a box, an agent's sandbox, on a GPU) for each set of GPUs
    that sources use, by the names of these GPUs. If sources with the same GPUs differ in `slots_per_gpu`, the
    largest value counts. Sources whose GPUs are unknown are left out."""
    slots: dict[tuple[str, ...], int] = {}
    for source in sources:
        if source.gpus:
            count = len(source.gpus) * source.slots_per_gpu
            slots[source.gpus] = max(count, slots.get(source.gpus, 0))
    return slots


def _time(seconds: float) -> str:
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
