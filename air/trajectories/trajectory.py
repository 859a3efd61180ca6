"""The file format of trajectories as types; `load(path)` reads one whole episode.

All versions up to the present one can be read. Unknown fields are ignored; fields that an older version
lacks get the default values in this module. `tests/unit/trajectories/v1.jsonl` is a file of version 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from air.config import validate
from air.errors import ConfigError
from air.trajectories.trajectory_file import read


class Line(BaseModel):
    """Base class for the lines of a trajectory and for their parts."""

    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)


class ToolUse(Line):
    """A model's call of a tool that the action format offers."""

    name: str
    """The tool's name."""
    args: tuple[str, ...] = ()
    """The tool's arguments, as text."""
    body: tuple[str, ...] | None = None
    """Lines of text that belong to the call, such as a file's new content; None if the tool takes no text."""


class Call(Line):
    """One parsed action: the action format found it in the model's reply."""

    script: str = ""
    """The shell script to run; empty if the action has none."""
    tool: ToolUse | None = None
    """The tool call; None if the action calls no tool."""
    ending: Literal["validate", "submit"] | None = None
    """Whether the action ends with a `validate` or a `submit`; None if with neither."""


class TokenRef(Line):
    """The place of a reply's tokens and logprobs: a range of nodes in the verifiers trace of the episode.

    `Start.trace` is the trace's id and `End.trace_file` its file. The last node of the range is the reply;
    the nodes before it are the messages to the model since its previous reply.
    """

    nodes: tuple[int, int] | None = None
    """Index of the first node and index after the last one; None if the reply is not in the trace."""
    prompt: int = 0
    """Number of tokens in the whole prompt, as the inference server counted them."""
    completion: int = 0
    """Number of tokens in the reply."""


class FileChange(Line):
    """One file that a step changed."""

    path: str
    """Path of the file, relative to the workspace."""
    status: Literal["added", "changed", "removed"]
    """What happened to the file."""
    bytes: int = 0
    """Size of the file after the step, in bytes."""
    added: int = 0
    """Number of lines added; 0 if unknown."""
    removed: int = 0
    """Number of lines removed; 0 if unknown."""
    note: str = ""
    """Why the diff does not show the whole change of this file, e.g. `binary` or `cut`; empty if it does."""


class Diff(Line):
    """The changes that one step made to the workspace's regular files."""

    text: str = ""
    """The changes as a unified diff; it may lack some files, see `FileChange.note`."""
    files: tuple[FileChange, ...] = ()
    """The files that changed, up to a limit."""
    cut: bool = False
    """Whether `text` or `files` is incomplete because too much changed."""
    seconds: float = 0.0
    """Time that computing the diff took, in seconds; it does not count as the episode's time."""
    problem: str = ""
    """Why the diff could not be computed; empty if it could."""


class Start(Line):
    """The first line of a trajectory: the episode's task, model, box and settings."""

    t: float = 0.0
    """When the episode began, in seconds since the epoch."""
    episode: str = ""
    """The episode's id; the trajectory's file has this name."""
    trace: str = ""
    """The id of the verifiers trace that holds the episode's tokens."""
    task: str
    """The task's id."""
    task_hash: str = ""
    """SHA-256 of everything that the task is made of, in hex."""
    seed: int = 0
    """The episode's seed."""
    metric: str = ""
    """The name of the task's primary metric."""
    direction: Literal["higher", "lower"] | None = None
    """Whether a higher or a lower value of the metric is better; None in the oldest files."""
    baseline: float | None = None
    """The task's declared baseline score on the validation split."""
    scale: Mapping[str, Any] = Field(default_factory=dict)
    """How a score becomes a reward: the fields of `air.tasks.spec.RewardScale`."""
    pay: Mapping[str, Any] = Field(default_factory=dict)
    """The run's reward settings: the fields of `air.rewards.terms.RewardSettings`, and `episode_seconds`,
    the time to which `time_penalty` refers."""
    format: str = ""
    """The action format: its name, or its class as `module:Class`; empty if unknown."""
    settings: Mapping[str, Any] = Field(default_factory=dict)
    """Settings of the harness, the loop that plays the agent (`max_observation_tokens`, `tokenizer`, …), and
    the settings that a subclass of `air.env.config.ResearchEnvConfig` adds."""
    max_turns: int | None = None
    """The largest number of turns; None if there is no limit."""
    task_roots: tuple[str, ...] = ()
    """Folders in which the task was looked up; if empty, it is one of the tasks that ship with air."""
    mlgym_root: str | None = None
    """Path of the checkout of MLGym in the run's settings; None if the settings named no checkout."""
    isolation: str = ""
    """How the box isolates the agent: `container`, or `process` for a plain process without a container."""
    image: str = ""
    """Name of the box's container image; empty if the box is a plain process."""
    image_digest: str = ""
    """Digest of the container image when the box started; empty if the box is a plain process."""
    workspace: str = "/workspace"
    """The workspace's path inside the box."""
    temporary: str = "/tmp"
    """Path of the folder for temporary files inside the box."""
    gpus: tuple[str, ...] = ()
    """UUIDs of the box's GPUs."""
    queue_seconds: float = 0.0
    """How long the episode waited for its box, in seconds."""
    config_hash: str = ""
    """SHA-256 of the environment's settings, in hex."""
    versions: Mapping[str, str] = Field(default_factory=dict)
    """Versions of Python and of the packages that can affect a result, by name."""
    system: str = ""
    """The system prompt."""
    prompt: str = ""
    """The first user message."""
    model: str = ""
    """The name of the model that acted as the agent."""
    harness: str = "air"
    """Name of the harness, the loop that plays the agent. With `air`, the model's actions are text; with
    other harnesses, they are tool calls."""
    origin: str = "air"
    """Which program recorded the episode: `air`, or the one from whose file it was imported."""


class Step(Line):
    """One turn: the model's reply, the action in it, and the world's answer."""

    t: float = 0.0
    """When the turn ended, in seconds since the epoch."""
    turn: int = 0
    """Number of the turn, from 1; a reply without an action counts too."""
    reply: str
    """The model's reply, in full."""
    action: str | None = None
    """The action's text as the model wrote it; None if the reply has no action."""
    call: Call | None = None
    """The parsed action; None if the reply has no action, and in files of version 1."""
    observation: str | None = None
    """The world's full answer to the action; None if there was no action, and in files of version 1."""
    shown: str = ""
    """The text that the model received as the answer; it may be shorter than `observation`."""
    left: int | None = None
    """Number of remaining turns after this one; None if turns are not limited."""
    code: int | None = None
    """Exit status of the script; None if no script ran."""
    timed_out: bool = False
    """Whether the script ran past the task's `limits.exec_seconds` and was killed."""
    truncated: bool = False
    """Whether a part of the output is missing in `observation` because the output was too long."""
    problem: str = ""
    """Why the reply has no action: `format` (it is malformed) or `length` (it was cut off); empty if it has
    one."""
    model_seconds: float = 0.0
    """Time that the model took to reply, in seconds."""
    exec_seconds: float = 0.0
    """Time that the action took in the box, in seconds, without grading."""
    tokens: TokenRef | None = None
    """Where the reply's tokens are; None if no trace was recorded."""
    diff: Diff | None = None
    """What the step changed in the workspace; None if this was not recorded."""


class Validation(Line):
    """One grading of the artefact, caused by a `validate`, a `submit` or the end of the episode."""

    t: float = 0.0
    """When the artefact had been graded, in seconds since the epoch."""
    turn: int = 0
    """Number of the turn in which, or after which, the artefact was graded; a step has the same number."""
    score: float | None = None
    """The value of the task's primary metric; None if the artefact was missing or malformed."""
    phi: float | None = None
    """The normalised and clipped score φ, of which a higher value is better; None if it was not computed."""
    anchor: float | None = None
    """The earlier φ with which `phi` was compared; None if there was no comparison."""
    delta: float = 0.0
    """The reward that this grading earned."""
    floor: float = 0.0
    """The noise floor: a smaller change of φ would have earned nothing."""
    stderr: float | None = None
    """The standard error of the score; None if the artefact was graded once."""
    problem: str = ""
    """What is wrong with the artefact; empty if it has a score."""
    metrics: Mapping[str, float] = Field(default_factory=dict)
    """All metrics that the grader reported, by name."""
    artefact: str = ""
    """Digest of the graded artefact."""
    kept: str = ""
    """Path of the stored artefact, relative to the trajectory's folder; empty if it was not stored."""
    seconds: float = 0.0
    """Time that grading took, in seconds, including the wait for a grader box."""
    remembered: bool = False
    """Whether the grade came from the cache, because an equal artefact had been graded before."""
    automatic: bool = False
    """Whether the artefact was graded because the episode ended, not because of an action of the agent."""


class Test(Line):
    """The score of the episode's last artefact on the test split."""

    score: float | None = None
    """The primary metric on the test split; None if the artefact was missing or malformed."""
    stderr: float | None = None
    """The standard error of the score; None if the artefact was graded once."""
    artefact: str = ""
    """Digest of the graded artefact."""
    kept: str = ""
    """Path of the stored artefact, relative to the trajectory's folder; empty if it was not stored."""


class End(Line):
    """The last line of a trajectory: how the episode ended, and its reward."""

    t: float = 0.0
    """When the episode ended, in seconds since the epoch."""
    ok: bool = False
    """Whether the episode ended without an infrastructure failure; only then does it have a reward."""
    why: str = ""
    """Why the episode ended: `submit`, `turns`, `context`, `length`, `format`, or the name of a stop
    condition of verifiers."""
    error: str | None = None
    """The infrastructure error that ended the episode; None if there was none."""
    reward: float | None = None
    """The sum of `terms`; None for a failed episode."""
    terms: Mapping[str, float] | None = None
    """The terms whose sum is the reward, by name; None for a failed episode."""
    metrics: Mapping[str, float] = Field(default_factory=dict)
    """Scores, counts and times of the episode, by name."""
    test: Test | None = None
    """The last artefact's score on the test split; None if no artefact was scored there."""
    branches: int | None = None
    """Number of branches of the verifiers trace, each of which is a training sample; None if unknown."""
    trace_file: str = ""
    """Path of the file with the verifiers trace, relative to the trajectory's folder; empty if not stored."""

    @property
    def times(self) -> dict[str, float]:
        """The seconds that the episode spent on each of `agent`, `model`, `exec`, `grading`, `queue`, ….

        `agent` is the agent's whole time, without grading; `queue` is the wait for a box.
        """
        return {
            name.removeprefix("seconds_"): value
            for name, value in self.metrics.items()
            if name.startswith("seconds_")
        }


@dataclass(frozen=True)
class Trajectory:
    """One recorded episode: the lines of its trajectory file, as types."""

    path: Path
    version: int
    """The format version of the first line; 0 if the file has no line."""
    start: Start | None
    """The first line; None if the episode failed before its first line was written."""
    steps: tuple[Step, ...]
    validations: tuple[Validation, ...]
    end: End | None
    """The last line; None if the episode is still running or its run was killed."""

    def validations_of(self, step: Step) -> list[Validation]:
        """Returns the gradings that a step's action caused, not those that the end of the episode caused."""
        return [one for one in self.validations if one.turn == step.turn and not one.automatic]

    def messages(self) -> list[dict[str, str]]:
        """Returns the conversation as messages `{"role", "content"}`, up to the answer to the last reply."""
        if self.start is None:
            return []
        talk = [{"role": "system", "content": self.start.system}] if self.start.system else []
        talk.append({"role": "user", "content": self.start.prompt})
        for step in self.steps:
            talk.append({"role": "assistant", "content": step.reply})
            talk.append({"role": "user", "content": step.shown})
        return talk


_KINDS: dict[str, type[Line]] = {
    "start": Start,
    "step": Step,
    "validate": Validation,
    "end": End,
}


def parse(line: Mapping[str, Any], *, where: str = "trajectory") -> Line:
    """Returns a trajectory's line as an object of its type: `Start`, `Step`, `Validation` or `End`.

    Args:
        line: a line of any version, as `air.trajectories.trajectory_file.read` yields it.
        where: the place of the line, for error messages.

    Raises:
        ConfigError: the line's type is unknown, or a field is missing or invalid.
    """
    kind = _KINDS.get(str(line.get("type")))
    if kind is None:
        raise ConfigError("not a line of a trajectory", where=where)
    data = dict(line)
    if kind is Step and data.get("v", 0) < 2:
        data["shown"], data["observation"] = data.get("observation", ""), None
    return validate(kind, data, where=f"{where}: {line['type']}")


def load(path: Path | str) -> Trajectory:
    """Returns the trajectory in the file `path`. Of an unfinished file, all complete lines are used.

    Raises:
        ConfigError: the file cannot be read or is not a trajectory.
    """
    path = Path(path)
    start: Start | None = None
    end: End | None = None
    steps: list[Step] = []
    validations: list[Validation] = []
    version = 0
    for number, raw in enumerate(read(path), start=1):
        version = version or int(raw.get("v", 0))
        line = parse(raw, where=f"{path}:{number}")
        if isinstance(line, Start):
            start = line
        elif isinstance(line, Step):
            steps.append(line)
        elif isinstance(line, Validation):
            validations.append(line)
        elif isinstance(line, End):
            end = line
    return Trajectory(path, version, start, tuple(steps), tuple(validations), end)
