"""Defines the classes for the settings in a task's file `task.toml`, such as `TaskSpec`. From these settings,
the methods of `TaskSpec` compute which boxes (sandboxes) the agent and the grader get.

A task in air's own format is a folder with `task.toml`, `README.md`, `data.py` (a script that makes the data;
it runs on this machine, not in a box), `starter/` (the agent's first files), `grader/` (the program that
grades; never enters an agent's box) and optionally `solvers.toml` (reference solutions, which `air tasks
check` runs). A task of MLGym (a public collection of research tasks) is not such a folder: an object of the
type `Source` writes its files into the folders of the agent and of the grader.
"""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path, PurePosixPath
from typing import Literal, Protocol

from pydantic import Field, PrivateAttr, field_validator, model_validator

from air.config import BaseConfig
from air.errors import ConfigError
from air.sandbox.contract.box import BoxLimits, BoxSpec
from air.sandbox.contract.network_rules import Names
from air.tasks.rules import Rules
from air.tasks.splits import PUBLIC_SPLIT, Split

GRADER_DIR = "/grader"
ID_PATTERN = r"^(([A-Za-z]|mlgym:[A-Za-z0-9])[A-Za-z0-9_-]{0,63}|harbor:[^\x00-\x1f]+)$"
Provider = Literal["docker", "process"]
_SPARE_SECONDS = 300.0


class Source(Protocol):
    """The interface of an object that provides a task's files if the task is not a folder in air's own
    format. Tasks of MLGym, a public collection of machine-learning research tasks, have such an object."""

    @property
    def solvers(self) -> Path:
        """The file with the task's reference solutions and recorded scores; it might not exist."""
        ...

    @property
    def protected(self) -> tuple[str, ...]:
        """Files and folders of the workspace that are write-protected for the agent, as paths relative to
        it."""
        ...

    def fill(
        self, agent: Path, grader: Path, split_seed: int, *, usual_seed: int, downloads: Path | None
    ) -> None:
        """Writes the task's files into two empty folders: `agent` gets what the agent starts with, and
        `grader` gets the grader's program and the hidden data.

        `downloads` is the folder with the task's downloaded files; None if the task has none. `split_seed` is
        the seed for splitting the data and for random evaluations. `usual_seed` is the public seed: if
        `split_seed` equals it, the data is split as the task's authors split it.
        """
        ...


class RewardScale(BaseConfig):
    """Settings that define how a task's scores become rewards: a score is normalised, and the agent's reward
    is the change of the normalised score since an earlier grade."""

    direction: Literal["higher", "lower"]
    """Whether a higher or a lower score is better."""
    baseline: float = Field(allow_inf_nan=False)
    """The validation score of the starter files. This score is normalised to 0, unless `normalise` is
    `none`."""
    target: float = Field(allow_inf_nan=False)
    """The validation score of a good solution. This score is normalised to 1, unless `normalise` is
    `none`."""
    optimum: float | None = Field(None, allow_inf_nan=False)
    """The best possible score. `normalise = "log-gap"` requires it, because it uses a score's distance to the
    optimum."""
    normalise: Literal["linear", "log-gap", "none"] = "linear"
    """How scores are normalised. `linear`: by a linear function of the score. `log-gap`: by a linear function
    of the logarithm of the score's distance to `optimum`. `none`: scores stay as they are, but change their
    sign if lower scores are better."""
    noise_floor: float = Field(0.0, ge=0, allow_inf_nan=False)
    """The smallest change of the normalised score, from an earlier grade to the present one, that earns a
    reward. A smaller change counts as noise, and the reward is 0."""
    noise_sigmas: float = Field(0.0, ge=0, allow_inf_nan=False)
    """Like `noise_floor`, but in units of the noise: the reward is 0 if the normalised score changes by less
    than this number times the standard error of the change. Requires `grader.repeats` of 2 or more, as a
    single grading gives no standard error."""
    phi_clip: tuple[float, float] = (-1.0, 2.0)
    """Lowest and highest normalised score. A normalised score outside this range is set to the nearest end of
    the range, before its difference from an earlier score is computed."""

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
    """Limits of time, resources and file sizes for a task. A limit of "a box" holds separately for the box
    (sandbox) of the agent and for that of the grader. Boxes are started in advance for given limits, so tasks
    with equal limits can share them."""

    exec_seconds: float = Field(60.0, gt=0)
    """Time limit of each command that the agent runs, in seconds."""
    grade_seconds: float = Field(60.0, gt=0)
    """Time limit of one run of the grader, in seconds. A grader that runs longer runs once more in a fresh
    box (sandbox). If it takes too long again, the artefact (the agent's files) is at fault and counts as the
    lowest score."""
    episode_seconds: float = Field(3600.0, gt=0)
    """Time limit of an episode, in seconds."""
    cpus: float = Field(1.0, gt=0)
    """Number of CPU cores of a box (sandbox)."""
    memory_mb: int = Field(512, ge=32)
    """Memory limit of a box (sandbox), in MiB."""
    pids: int = Field(128, ge=8)
    """Largest number of processes and threads in a box (sandbox) at one time."""
    disk_mb: int = Field(256, ge=1)
    """Size limit of a box's workspace, in MiB."""
    artefact_mb: float = Field(1.0, gt=0)
    """Largest size in MiB of an artefact (the files to grade): the sum of its files' sizes."""

    def box(self, seconds: float) -> BoxLimits:
        """Returns the limits of a box (sandbox) that is in use for `seconds` seconds. The box's lifetime is
        300 seconds longer than that."""
        return BoxLimits(
            cpus=self.cpus,
            memory_mb=self.memory_mb,
            pids=self.pids,
            disk_mb=self.disk_mb,
            seconds=seconds + _SPARE_SECONDS,
        )


class Download(BaseConfig):
    """A file from which the task's data are made. Only `air tasks fetch` downloads it."""

    name: str = Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$")
    """The file's name in the folder of downloads. `data.py` gets that folder's path in the environment
    variable `AIR_DOWNLOADS`."""
    url: str = Field(pattern=r"^https?://")
    """The address from which the file is downloaded."""
    md5: str = Field("", pattern=r"^([0-9a-f]{32})?$")
    """The MD5 checksum that the publisher states. If it is empty, the first download of the file is trusted,
    and the file must stay unchanged from then on."""


class TaskData(BaseConfig):
    """Settings that name the script which makes a task's data, and what this script needs: downloaded files
    and Python packages."""

    script: str = "data.py"
    """The script that makes the data on this machine, outside the boxes (sandboxes), as a path relative to
    the task's folder. The script defines `prepare(agent_dir, grader_dir, split_seed)`."""
    folder: str = Field("data", pattern=r"^[A-Za-z0-9_-]+$")
    """Name of the folder that contains the data, both in the agent's workspace and beside the grader's
    script."""
    downloads: tuple[Download, ...] = ()
    """Files from which the data is made; `air tasks fetch` must download them first."""
    packages: tuple[str, ...] = ()
    """Names, as in `import`, of the Python packages from which the script takes the data. Their files can
    contain hidden answers, and the agent can import the packages of this Python if it works in a process box
    (a sandbox without a container). If such a box uses Linux namespaces, the named packages are hidden from
    the agent."""


class TaskGrader(BaseConfig):
    """Settings of the program that computes the scores of an artefact (the agent's files to grade): the
    task's grader."""

    script: str = "grade.py"
    """Name of the grader's program in the task's folder `grader/`."""
    shared: tuple[str, ...] = ()
    """More files that are copied beside the grader's program. `starter/NAME` names a starter file.
    `_shared/NAME` names a file in the folder `_shared` beside the task's folder or, if the file is not there,
    beside the tasks that ship with air."""
    gpus: int = Field(0, ge=0)
    """Number of GPUs of the grader's box (sandbox); a run reserves this many GPUs for grader boxes."""
    repeats: int = Field(1, ge=1, le=100)
    """Number of times that each artefact (an agent's files) is graded, each time with another seed in a new
    box (sandbox). Use more than 1 if the task's scores are random. The score is the mean; the limits apply to
    each grading."""


class TaskSpec(RewardScale):
    """The settings of one task, as its file `task.toml` declares them."""

    id: str = Field(pattern=ID_PATTERN)
    """The task's name in run files; it must equal the name of the task's folder."""
    name: str = Field(min_length=1)
    """The task's title for people."""
    description: str = Field(min_length=1)
    """The task's text for the agent. It describes the files, the artefact (what to hand in) and the
    metric."""
    metric: str = Field(min_length=1)
    """Name of the metric that is the task's score; the grader reports it under this name."""
    told_step: float | None = Field(None, gt=0, allow_inf_nan=False)
    """Scores that the agent reads are rounded to a multiple of this value; rewards use exact scores. None:
    the step is the power of ten that lies between a hundredth and a tenth of the distance from `baseline` to
    `target`. If `normalise` is `log-gap`, the distance from `target` to `optimum` is used if it is
    smaller."""
    artefact: str = Field(min_length=1)
    """The file or folder that is graded, relative to the workspace; a folder ends in `/`."""
    more_artefacts: tuple[str, ...] = ()
    """More files and folders that are graded together with `artefact`; each must exist."""
    image: str = "air-base"
    """The container image of the agent's box (sandbox) and of the grader's box."""
    network: Names = ()
    """Names of the hosts to which the agent's box can connect, such as `example.org`, `*.example.org` or `*`
    (all public hosts). The grader's box has no network. For ports and private addresses, see
    `air.sandbox.contract.network_rules`."""
    gpus: int = Field(0, ge=0)
    """Number of GPUs of the agent's box (sandbox)."""
    trust: Literal["data", "code", "evaluator", "separate", "shared"] = "data"
    """How grading uses the artefact (the agent's files), and so whether the artefact could forge its score.
    `data`: the grader only reads the artefact. `code`: the artefact runs in the grader's box (sandbox), in
    another process and as a different user from the grader. `evaluator`: an evaluation script that is not
    part of air imports the artefact, also as another user, so the artefact could make that script print any
    score. `separate`: a test script of the task (Harbor's) reads or runs the artefact in a fresh box, so the
    artefact's code could write any score. `shared`: the test script runs in the agent's own box, whose
    programs the agent could have changed."""
    caveat: str = ""
    """A warning about the task's scores, in one line."""
    limits: TaskLimits = TaskLimits()
    """Limits of the agent, its box (sandbox) and the grader."""
    data: TaskData = TaskData()
    """The script that makes the task's data, and what this script needs."""
    grader: TaskGrader = TaskGrader()
    """Settings of the task's grader."""

    @model_validator(mode="after")
    def _noise_is_measured(self) -> TaskSpec:
        if self.noise_sigmas and self.grader.repeats < 2:
            raise ValueError("noise_sigmas needs grader.repeats = 2 or more, to measure the noise")
        return self

    _folder: Path = PrivateAttr(default=Path())
    _shared: tuple[Path, ...] = PrivateAttr(default=())
    _hash: str = PrivateAttr(default="")
    _source: Source | None = PrivateAttr(default=None)
    _rules: Rules | None = PrivateAttr(default=None)
    _split: Split = PrivateAttr(default=PUBLIC_SPLIT)

    @field_validator("artefact", "more_artefacts")
    @classmethod
    def _inside(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        for path in map(PurePosixPath, [value] if isinstance(value, str) else value):
            if path.is_absolute() or ".." in path.parts or not path.parts:
                raise ValueError("must be a path inside the workspace")
        return value

    @property
    def artefacts(self) -> tuple[str, ...]:
        """Paths of all files and folders that are graded, relative to the workspace."""
        return (self.artefact, *self.more_artefacts)

    @property
    def folder(self) -> Path:
        return self._folder

    @property
    def shared(self) -> tuple[Path, ...]:
        """Paths of the files that the setting `grader.shared` names; they are copied beside the grader's
        program."""
        return self._shared

    @property
    def hash(self) -> str:
        """SHA-256, in hex, of the task's files and settings. When it changes, the data and grades that were
        cached for the task are no longer used."""
        return self._hash

    @property
    def source(self) -> Source | None:
        """The `Source` object that writes the task's files into the folders of the agent and of the grader;
        None if the task is a folder in air's own format."""
        return self._source

    @property
    def rules(self) -> Rules | None:
        """The `Rules` object that prepares and grades the task in the way of another framework, such as
        Harbor; None if air prepares and grades the task in its own way."""
        return self._rules

    @property
    def split(self) -> Split:
        """The split of the task's data into a part that the agent sees and a hidden part, with its seed.
        `baseline` and `target` are scores on this split."""
        return self._split

    @property
    def solvers(self) -> Path:
        """The file with the task's reference solutions and recorded scores; it might not exist."""
        return self._source.solvers if self._source else self._folder / "solvers.toml"

    def set_origin(
        self,
        folder: Path,
        digest: str,
        source: Source | None = None,
        *,
        shared: tuple[Path, ...] = (),
    ) -> TaskSpec:
        """Stores four values in this task and returns the task itself: the folder from which the task was
        read (for MLGym, the checkout), the hash `digest` of its files, the `Source` (the object that provides
        its files; None if the folder contains them), and the paths of the files that its grader shares with
        other tasks. Reads nothing."""
        self._folder, self._hash, self._source, self._shared = folder, digest, source, shared
        return self

    def played_by(self, rules: Rules, folder: Path, digest: str) -> TaskSpec:
        """Stores three values in this task and returns the task itself: its `Rules` (the object that prepares
        and grades it), the folder from which it was read, and the hash `digest` of its files."""
        self._rules, self._folder, self._hash = rules, folder, digest
        return self

    def on(self, split: Split, scale: RewardScale | None = None) -> TaskSpec:
        """Returns a copy of this task that uses another split of its data. `scale` contains the settings
        `baseline`, `target` and so on that hold for this split; None: this task's own settings stay."""
        changes = {} if scale is None else {n: getattr(scale, n) for n in RewardScale.model_fields}
        task = self.model_copy(update=changes)
        task._split = split
        return task

    def reward_scale(self) -> RewardScale:
        """Returns a `RewardScale` with this task's values of its fields, such as `baseline`, `target` and
        `normalise`: the settings that define how scores become rewards."""
        return RewardScale(**{name: getattr(self, name) for name in RewardScale.model_fields})

    def box_spec(self, provider: Provider) -> BoxSpec:
        """Returns the settings (`BoxSpec`) of an agent's box (sandbox) for this task. Raises ConfigError if
        the task needs a container but `provider` is `process`."""
        if self._rules is not None:
            if provider != "docker":
                raise ConfigError(
                    "is played only in containers",
                    where=f"task {self.id}",
                    remedy='use agent.runtime.type = "docker"',
                )
            return self._rules.agent_box()
        return BoxSpec(
            provider=provider,
            image=self.image,
            gpus=self.gpus,
            limits=self.limits.box(self.limits.episode_seconds),
            network=self.network,
            hidden=self._hidden(provider),
        )

    def grader_spec(self, provider: Provider) -> BoxSpec:
        """Returns the settings (`BoxSpec`) of a grader box (sandbox) for this task. If grading executes the
        artefact (the agent's files), the box has a second user, as which the artefact's code runs."""
        return BoxSpec(
            provider=provider,
            image=self.image,
            gpus=self.grader.gpus,
            limits=self.limits.box(self.limits.grade_seconds),
            scratch=(GRADER_DIR,),
            hidden=self._hidden(provider),
            second_user=self.trust != "data",
        )

    def _hidden(self, provider: Provider) -> tuple[str, ...]:
        """Returns the paths of the folders that a process box (a sandbox without a container) must hide from
        the agent: those of the Python packages from which the task's data is made. Empty if `provider` is
        another kind of box."""
        if provider != "process":
            return ()
        found = [importlib.util.find_spec(name) for name in self.data.packages]
        return tuple(
            folder for one in found if one for folder in one.submodule_search_locations or ()
        )

    def needs(self) -> str:
        """Returns a line of text for people that lists the resources of the task's boxes (sandboxes), such as
        CPU cores and GPUs."""
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
    """Whether a metric's value can be used as a score. It must be a finite number, and not a bool."""
    if not isinstance(score, int | float) or isinstance(score, bool):
        return False
    try:
        return math.isfinite(float(score))
    except OverflowError:  # an integer of hundreds of digits
        return False
