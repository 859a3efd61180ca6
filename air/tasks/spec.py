"""What a task is: the fields of `tasks/<id>/task.toml`, and the boxes that follow from them.

A task of our own is a folder: it holds `task.toml`, `README.md`, optionally `solvers.toml` (settings with
recorded scores, for `air tasks check`), `data.py` (run on the host), `starter/` (the agent's files) and
`grader/` (which never enters an agent's box). Files that several graders use are in `_shared/`, beside the
tasks' folders. Tasks of other origins have a `Source`.
"""

from __future__ import annotations

import math
from pathlib import Path, PurePosixPath
from typing import Literal, Protocol

from pydantic import Field, PrivateAttr, field_validator, model_validator

from air.config import BaseConfig
from air.sandbox.contract.box import BoxLimits, BoxSpec
from air.sandbox.contract.network_rules import Names

GRADER_DIR = "/grader"
ID_PATTERN = r"^([A-Za-z]|mlgym:[A-Za-z0-9])[A-Za-z0-9_-]{0,63}$"
Provider = Literal["docker", "process"]
_SPARE_SECONDS = 300.0


class Source(Protocol):
    """The origin of a task's files, if the task is not a folder of air's own format."""

    @property
    def solvers(self) -> Path:
        """The recorded solvers of the task; the file may be absent."""
        ...

    @property
    def protected(self) -> tuple[str, ...]:
        """Files and folders of the agent's workspace that are write-protected."""
        ...

    def fill(self, agent: Path, grader: Path, split_seed: int, *, usual_seed: int) -> None:
        """Lays out the agent's workspace and the grader's folder, both empty."""
        ...


class RewardScale(BaseConfig):
    """How a score becomes a reward: the part of a task that `air.rewards` uses."""

    direction: Literal["higher", "lower"]
    """Whether a higher or a lower score is better."""
    baseline: float = Field(allow_inf_nan=False)
    """The validation score of the starter files; normalised, it is 0."""
    target: float = Field(allow_inf_nan=False)
    """The validation score that a good solution reaches; normalised, it is 1."""
    optimum: float | None = Field(None, allow_inf_nan=False)
    """The best score there can be; `log-gap` measures the distance to it."""
    normalise: Literal["linear", "log-gap", "none"] = "linear"
    """How scores are normalised. `none` only changes the sign, if needed, so that higher is better."""
    noise_floor: float = Field(0.0, ge=0, allow_inf_nan=False)
    """Smaller changes of the normalised score earn nothing."""
    noise_sigmas: float = Field(0.0, ge=0, allow_inf_nan=False)
    """Changes smaller than this many of their standard errors earn nothing either; repeated grading
    (`grader.repeats`) measures these."""
    phi_clip: tuple[float, float] = (-1.0, 2.0)
    """Bounds of the normalised score, applied before deltas are computed."""

    @model_validator(mode="after")
    def _consistent(self) -> RewardScale:
        if self.target == self.baseline:
            raise ValueError("target equals baseline: set target to what a good solution reaches")
        if (self.target > self.baseline) != (self.direction == "higher"):
            raise ValueError(f"target is worse than baseline while {self.direction} is better")
        if not self.phi_clip[0] < self.phi_clip[1]:
            raise ValueError("phi_clip must be [low, high] with low < high")
        if self.normalise == "log-gap":
            if self.optimum is None:
                raise ValueError('normalise = "log-gap" needs optimum')
            gaps = [abs(score - self.optimum) for score in (self.baseline, self.target)]
            if min(gaps) == 0 or gaps[0] == gaps[1]:
                raise ValueError("baseline and target must lie at different distances of optimum")
        if self.normalise == "none" and "phi_clip" not in self.model_fields_set:
            raise ValueError('normalise = "none" needs phi_clip in the units of the metric')
        return self


class TaskLimits(BaseConfig):
    """The limits of the agent, its box and the grader. Tasks with equal limits share warm boxes."""

    exec_seconds: float = Field(60.0, gt=0)
    """Longest run of one of the agent's commands, in seconds."""
    grade_seconds: float = Field(60.0, gt=0)
    """Longest run of the grader, in seconds; a longer run is an infrastructure failure."""
    episode_seconds: float = Field(3600.0, gt=0)
    """Longest episode, in seconds."""
    cpus: float = Field(1.0, gt=0)
    """CPU cores of a box."""
    memory_mb: int = Field(512, ge=32)
    """Memory of a box in MiB."""
    pids: int = Field(128, ge=8)
    """Processes and threads at once in a box."""
    disk_mb: int = Field(256, ge=1)
    """Size of the workspace in MiB."""
    artefact_mb: float = Field(16.0, gt=0)
    """Largest artefact in MiB, all its files together."""

    def box(self, seconds: float) -> BoxLimits:
        """Returns the limits of a box that is used for `seconds`; some spare time is added."""
        return BoxLimits(
            cpus=self.cpus,
            memory_mb=self.memory_mb,
            pids=self.pids,
            disk_mb=self.disk_mb,
            seconds=seconds + _SPARE_SECONDS,
        )


class Download(BaseConfig):
    """One file that the task's data are made from; only `air tasks fetch` downloads it."""

    name: str = Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$")
    """Its name in the folder that `AIR_DOWNLOADS` names for `data.py`."""
    url: str = Field(pattern=r"^https?://")
    """The address from which it is downloaded."""
    md5: str = Field("", pattern=r"^([0-9a-f]{32})?$")
    """The checksum that its publisher states; if there is none, later files must equal the first download."""


class TaskData(BaseConfig):
    """How the task's data is made."""

    script: str = "data.py"
    """Defines `prepare(agent_dir, grader_dir, split_seed)`; runs on the host."""
    folder: str = Field("data", pattern=r"^[A-Za-z0-9_-]+$")
    """Name of the data's folder, in the workspace and beside the grader's script."""
    downloads: tuple[Download, ...] = ()
    """Files that must be fetched first."""


class TaskGrader(BaseConfig):
    """How an artefact is graded."""

    script: str = "grade.py"
    """The grader's program in `grader/`."""
    shared: tuple[str, ...] = ()
    """Files that are copied beside the script: `_shared/NAME` is a file of the folder `_shared` beside the
    task's folder, or else of the one that ships with air; `starter/NAME` is one of the agent's files."""
    gpus: int = Field(0, ge=0)
    """GPUs of the grader's box; a run reserves them for graders."""
    repeats: int = Field(1, ge=1, le=100)
    """Gradings of one artefact, each with another seed in another box, for tasks whose scores depend on luck.
    The score is the mean; the limits apply to each grading."""


class TaskSpec(RewardScale):
    """One task, as `task.toml` declares it."""

    id: str = Field(pattern=ID_PATTERN)
    """The task's name in run files; the same as its folder's."""
    name: str = Field(min_length=1)
    """A title for people."""
    description: str = Field(min_length=1)
    """The text for the agent: files, artefact, metric."""
    metric: str = Field(min_length=1)
    """The primary metric; the grader reports it under this name."""
    artefact: str = Field(min_length=1)
    """The file or folder that is graded, relative to the workspace; a folder ends in `/`."""
    more_artefacts: tuple[str, ...] = ()
    """More files and folders that are graded with it; each must exist."""
    image: str = "air-base"
    """The image of its boxes."""
    network: Names = ()
    """Hosts that the agent's box may reach, by name; graders reach none.
    See `air.sandbox.contract.network_rules`."""
    gpus: int = Field(0, ge=0)
    """GPUs of the agent's box."""
    trust: Literal["data", "code", "evaluator"] = "data"
    """How grading uses the artefact. `data`: it is read. `code`: it runs as a second user in the grader box,
    apart from the grader. `evaluator`: a foreign evaluation imports it, also as a second user, so it could
    make that evaluation print any score."""
    caveat: str = ""
    """A warning about its scores, in one line."""
    limits: TaskLimits = TaskLimits()
    """Limits of the agent, its box and the grader."""
    data: TaskData = TaskData()
    """Data preparation."""
    grader: TaskGrader = TaskGrader()
    """The grader."""

    @model_validator(mode="after")
    def _noise_is_measured(self) -> TaskSpec:
        if self.noise_sigmas and self.grader.repeats < 2:
            raise ValueError("noise_sigmas needs grader.repeats = 2 or more, to measure the noise")
        return self

    _folder: Path = PrivateAttr(default=Path())
    _shared: tuple[Path, ...] = PrivateAttr(default=())
    _hash: str = PrivateAttr(default="")
    _source: Source | None = PrivateAttr(default=None)

    @field_validator("artefact", "more_artefacts")
    @classmethod
    def _inside(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        for path in map(PurePosixPath, [value] if isinstance(value, str) else value):
            if path.is_absolute() or ".." in path.parts or not path.parts:
                raise ValueError("must be a path inside the workspace")
        return value

    @property
    def artefacts(self) -> tuple[str, ...]:
        """All that is graded."""
        return (self.artefact, *self.more_artefacts)

    @property
    def folder(self) -> Path:
        """The folder of the task."""
        return self._folder

    @property
    def shared(self) -> tuple[Path, ...]:
        """The files that `grader.shared` names."""
        return self._shared

    @property
    def hash(self) -> str:
        """SHA-256 of all files of the task, in hex."""
        return self._hash

    @property
    def source(self) -> Source | None:
        """The origin of its files; None if they are in its folder."""
        return self._source

    @property
    def solvers(self) -> Path:
        """Its recorded solvers; the file may be absent."""
        return self._source.solvers if self._source else self._folder / "solvers.toml"

    def read_from(
        self,
        folder: Path,
        digest: str,
        source: Source | None = None,
        *,
        shared: tuple[Path, ...] = (),
    ) -> TaskSpec:
        """Sets the folder and the digest that the task was read from; returns the task."""
        self._folder, self._hash, self._source, self._shared = folder, digest, source, shared
        return self

    def reward_scale(self) -> RewardScale:
        """The part of the task that turns scores into rewards."""
        return RewardScale(**{name: getattr(self, name) for name in RewardScale.model_fields})

    def box_spec(self, provider: Provider) -> BoxSpec:
        """The box in which an agent works on it."""
        return BoxSpec(
            provider=provider,
            image=self.image,
            gpus=self.gpus,
            limits=self.limits.box(self.limits.episode_seconds),
            network=self.network,
        )

    def grader_spec(self, provider: Provider) -> BoxSpec:
        """The box in which one artefact is graded."""
        return BoxSpec(
            provider=provider,
            image=self.image,
            gpus=self.grader.gpus,
            limits=self.limits.box(self.limits.grade_seconds),
            scratch=(GRADER_DIR,),
            second_user=self.trust != "data",
        )

    def needs(self) -> str:
        """The resources of its boxes, as a text for people."""
        parts = [f"{self.limits.cpus:g} cpu", f"{self.limits.memory_mb} MiB"]
        if self.gpus:
            parts.append(f"{self.gpus} gpu")
        if self.grader.gpus:
            parts.append(f"{self.grader.gpus} gpu for grading")
        parts += [f"network {host}" for host in self.network]
        if self.image != "air-base":
            parts.append(f"image {self.image}")
        return ", ".join(parts)


def usable(score: object) -> bool:
    """Whether a metric's value is a finite number."""
    return (
        isinstance(score, int | float)
        and not isinstance(score, bool)
        and math.isfinite(float(score))
    )
