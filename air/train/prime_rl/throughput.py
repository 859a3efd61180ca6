"""What a run's numbers mean in boxes, seconds and staleness, before it starts. Pure.

Steady state with every episode at its limit of time. With n_i episodes of a stream (a task of a source) in a
step, L_i their seconds, and the places they need (boxes of a source, slots of GPUs, places of the host,
episodes in flight):

    seconds of a step     S = max over places r of  sum_{i in r} n_i L_i u_i / places_r
    busy episodes         sum_i n_i L_i / S;  the rest of those in flight, w, wait for the fullest place r*
    age of an episode     L_i / S, and w / sum_{j in r*} n_j more where it waits (Little's law), in steps

u_i is 1, or with GPUs how many a box takes. Ages depend on ratios alone: they hold as well where all
episodes are faster than their limits by the same factor.
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
    """A task, as far as it takes time and GPUs."""

    name: str
    seconds: float
    """Its longest episode."""
    gpus: int = 0
    """GPUs of one box."""


@dataclass(frozen=True)
class Source:
    """Where episodes are played."""

    name: str
    tasks: tuple[Task, ...]
    ratio: float = 1.0
    group_size: int = 1
    boxes: int | None = None
    """Boxes at once, over all its processes; None: unknown, as many as there are episodes."""
    gpus: tuple[str, ...] | None = ()
    """The GPUs of agents' boxes; None: another machine's, unknown."""
    slots_per_gpu: int = 1
    elsewhere: bool = False
    """Whether its boxes are on another machine."""


@dataclass(frozen=True)
class Load:
    """A run, as far as it keeps boxes busy."""

    sources: tuple[Source, ...]
    batch_size: int
    """Episodes of a step."""
    in_flight: int
    """Most episodes at once."""
    host_boxes: int
    """Most boxes at once on this machine."""
    bound: int | None
    """`max_off_policy_steps`; None: a step waits for its own episodes, so that none grows old."""
    max_steps: int | None = None
    """Steps of the run; None: without end."""


@dataclass(frozen=True)
class Age:
    """How old, in steps, the episodes of a stream are when they end."""

    name: str
    steps: float
    share: float
    """Its share of all episodes."""


@dataclass(frozen=True)
class Throughput:
    """What came out."""

    boxes: int
    """Boxes at once."""
    gpu_slots: int | None
    """Boxes at once that have GPUs; None: unknown."""
    step_seconds: float
    fullest: str
    """What the step waits for."""
    ages: tuple[Age, ...]
    bound: int | None
    max_steps: int | None = None

    @property
    def outliving(self) -> tuple[Age, ...]:
        """Streams whose episodes are older at their end than the bound, and so are dropped."""
        return () if self.bound is None else tuple(a for a in self.ages if a.steps > self.bound)

    def lines(self) -> list[str]:
        """The plan, for people."""
        slots = "unknown" if self.gpu_slots is None else str(self.gpu_slots)
        rows = [
            f"boxes at once {self.boxes}, with a GPU {slots}",
            f"a step takes at most {_time(self.step_seconds)}, as {self.fullest} allow; less where episodes "
            "end before their limits",
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
            for age in self.outliving
        ]
        return rows

    def absurd(self) -> str:
        """Why the plan makes no sense; empty where it does."""
        run = self.step_seconds * (self.max_steps or 1)
        if self.step_seconds > LONGEST_STEP or run > LONGEST_RUN:
            return (
                f"a step could take {_time(self.step_seconds)}, and the run {_time(run)}, since "
                f"{self.fullest} allow no more: give more boxes or GPU slots, shorten "
                "agent.timeout.rollout to what episodes need, or lower batch_size"
            )
        lost = sum(age.share for age in self.outliving)
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
    """Why an episode could never start; empty where each could."""
    for source in load.sources:
        for task in source.tasks:
            if source.gpus is not None and task.gpus > len(source.gpus):
                return (
                    f"source {source.name}: a box of {task.name} takes {task.gpus} GPUs, and the boxes have "
                    f"{len(source.gpus)}: name more under env.gpus, or take the task out"
                )
    return ""


def plan(load: Load) -> Throughput:
    """The steady state. `impossible` must have been asked before."""
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
    return Throughput(boxes, _slots(load), seconds, fullest.name, ages, load.bound, load.max_steps)


def check(load: Load) -> Throughput:
    """The steady state of a run that can be started.

    Raises:
        ConfigError: the plan makes no sense; says why.
    """
    if reason := impossible(load) or (found := plan(load)).absurd():
        raise ConfigError(reason, where="plan")
    return found


def workers(*, most: int | None, multiplex: int, in_flight: int) -> int:
    """Processes of an elastic pool: one more at 90 % of `multiplex` episodes for each.

    Args:
        most: their bound; None: none.
    """
    wanted = max(1, math.ceil(in_flight / (0.9 * multiplex)))
    return wanted if most is None else min(wanted, most)


def _streams(load: Load) -> list[_Stream]:
    """Ratios choose prompts, each of which is played `group_size` times; a source's tasks take turns."""
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
    for gpus in dict.fromkeys(s.gpus for s in load.sources if s.gpus):
        users = [s for s in load.sources if s.gpus == gpus]
        mine = tuple(s for s in streams if s.source in users and s.task.gpus)
        if mine:
            count = len(gpus) * max(s.slots_per_gpu for s in users)
            places.append(_Place(f"the slots of GPU {', '.join(gpus)}", count, mine, by_gpus=True))
    return places


def _slots(load: Load) -> int | None:
    wanting = [s for s in load.sources if any(task.gpus for task in s.tasks)]
    if any(s.gpus is None for s in wanting):
        return None
    slots = {s.gpus: len(s.gpus or ()) * s.slots_per_gpu for s in wanting}
    return sum(slots.values())


def _time(seconds: float) -> str:
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
