"""The trajectory format, as types: `load(path)` gives one whole episode.

A reader takes every version up to the present one. Fields it does not know are ignored; those that an older
version had not have the defaults below. `tests/unit/trajectories/v1.jsonl` is a file of version 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from air.config import validate
from air.errors import ConfigError
from air.trajectories.record import read


class Line(BaseModel):
    """One line, or a part of one."""

    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)


class ToolUse(Line):
    """One use of a tool of the action format."""

    name: str
    """The tool's name."""
    args: tuple[str, ...] = ()
    """Its arguments, as text."""
    body: tuple[str, ...] | None = None
    """Lines of text that came with it; None where the tool takes none."""


class Call(Line):
    """An action, exactly: what the action format made of the reply."""

    script: str = ""
    """The shell script; empty where there is none."""
    tool: ToolUse | None = None
    """The use of a tool; None if the action is a script."""
    ending: Literal["validate", "submit"] | None = None
    """What the action asks for after the script; None if it asks for neither."""


class TokenRef(Line):
    """Where a reply's tokens and logprobs are: nodes of the trace that `Start.trace` names, which lies in the
    file that `End.trace_file` names. The last node of the range is the reply; the ones before it are
    what had been said to the model since."""

    nodes: tuple[int, int] | None = None
    """First node and one past the last; None where the reply was not added to the trace."""
    prompt: int = 0
    """Tokens of all that was sent, as the server counted them."""
    completion: int = 0
    """Tokens of the reply."""


class FileChange(Line):
    """One file that a step changed."""

    path: str
    """Relative to the workspace."""
    status: Literal["added", "changed", "removed"]
    """What happened to the file."""
    bytes: int = 0
    """Its size afterwards."""
    added: int = 0
    """Lines added, as far as known."""
    removed: int = 0
    """Lines removed, as far as known."""
    note: str = ""
    """Why its content is not in the diff, or not all of it: `binary`, `too large`, `cut`, …; else empty."""


class Diff(Line):
    """What a step did to the workspace's regular files."""

    text: str = ""
    """Unified diff; files of which nothing is shown have no part in it."""
    files: tuple[FileChange, ...] = ()
    """Every file that changed."""
    cut: bool = False
    """Whether there was more than is kept."""
    seconds: float = 0.0
    """What looking took; no part of the episode's own time."""
    problem: str = ""
    """Why it could not be looked at; empty where it could."""


class Start(Line):
    """The first line: what is played, by whom, where."""

    t: float = 0.0
    """When, in seconds since the epoch, as in every line."""
    episode: str = ""
    """The episode's id; the file is named after it."""
    trace: str = ""
    """The verifiers trace's id."""
    task: str
    """The task's id."""
    task_hash: str = ""
    """SHA-256 of all that the task is made of."""
    seed: int = 0
    """The episode's seed."""
    metric: str = ""
    """The name of the task's primary metric."""
    direction: Literal["higher", "lower"] | None = None
    """Which way the metric is better; None in the oldest files."""
    baseline: float | None = None
    """The task's declared baseline score on the validation split."""
    scale: Mapping[str, Any] = Field(default_factory=dict)
    """How a score becomes a reward: the fields of `air.tasks.spec.RewardScale`."""
    pay: Mapping[str, Any] = Field(default_factory=dict)
    """The run's reward settings: the fields of `air.rewards.terms.RewardSettings`, and
    `episode_seconds`, the time that `time_penalty` is for."""
    format: str = ""
    """The action format: a name, or `module:Class`; empty if unknown."""
    settings: Mapping[str, Any] = Field(default_factory=dict)
    """The harness's settings (`max_observation_tokens`, `tokenizer`, `window`, …), and those that a
    subclass of `air.env.config.ResearchEnvConfig` adds."""
    max_turns: int | None = None
    """The limit of turns; None: no limit."""
    task_roots: tuple[str, ...] = ()
    """Folders in which the task was looked for, instead of among the shipped ones; empty: among those."""
    mlgym_root: str | None = None
    """The checkout of MLGym in which the task was found; None for other tasks."""
    isolation: str = ""
    """`container` or `process`."""
    image: str = ""
    """The name of the box's image; empty for a process box."""
    image_digest: str = ""
    """What the image's tag stood for; empty for a process box."""
    workspace: str = "/workspace"
    """Where commands saw the workspace."""
    temporary: str = "/tmp"
    """Where commands saw the folder for temporary files."""
    gpus: tuple[str, ...] = ()
    """UUIDs."""
    queue_seconds: float = 0.0
    """How long it waited for its box."""
    config_hash: str = ""
    """SHA-256 of the environment's settings."""
    versions: Mapping[str, str] = Field(default_factory=dict)
    """Of Python and the packages that matter."""
    system: str = ""
    """The system prompt."""
    prompt: str = ""
    """The first user message."""
    model: str = ""
    """The name of the model that played."""
    harness: str = "air"
    """The program that played; `air` is the one whose turns are text."""
    origin: str = "air"
    """Who recorded it: `air`, or the format that it was imported from."""


class Step(Line):
    """One turn: what the model said, what was done, what came of it."""

    t: float = 0.0
    """When it was over."""
    turn: int = 0
    """Counted from 1; a reply that was no action counts too."""
    reply: str
    """The model's reply, in full."""
    action: str | None = None
    """The action as the model wrote it; None where the reply was none."""
    call: Call | None = None
    """The same, taken apart; None there and in version 1."""
    observation: str | None = None
    """What the world answered, in full; None where nothing was done, and in version 1."""
    shown: str = ""
    """What the model was shown of it."""
    left: int | None = None
    """Turns left afterwards; None where nothing limited them."""
    code: int | None = None
    """Exit status of the script; None where none ran."""
    timed_out: bool = False
    """Whether the script ran past the task's `limits.exec_seconds` and was killed."""
    truncated: bool = False
    """Whether output was cut before it reached `observation`."""
    problem: str = ""
    """`format` or `length`: why the reply was no action."""
    model_seconds: float = 0.0
    """Time until the model's reply was there."""
    exec_seconds: float = 0.0
    """Time that the action took in the box, without grading."""
    tokens: TokenRef | None = None
    """Where the reply's tokens are; None if no trace was recorded."""
    diff: Diff | None = None
    """None where none was recorded."""


class Validation(Line):
    """One grading; it belongs to the step of the same turn."""

    t: float = 0.0
    """When the grade was there."""
    turn: int = 0
    """The turn of the step that it belongs to."""
    score: float | None = None
    """The primary metric as measured; None where the artefact was missing or malformed."""
    phi: float | None = None
    """The score, oriented, normalised and clipped."""
    anchor: float | None = None
    """The φ that it was compared with."""
    delta: float = 0.0
    """What it earned."""
    floor: float = 0.0
    """A smaller move would have earned nothing."""
    stderr: float | None = None
    """The standard error of the score; None if the artefact was graded once."""
    problem: str = ""
    """What was wrong with the artefact."""
    metrics: Mapping[str, float] = Field(default_factory=dict)
    """All metrics that the grader reported."""
    artefact: str = ""
    """Digest of what was graded."""
    kept: str = ""
    """Where its bytes lie, relative to the trajectory's folder; empty where they were not kept."""
    seconds: float = 0.0
    """What grading took, waiting for a grader's box included."""
    remembered: bool = False
    """Whether the grade was looked up: an equal artefact was graded before."""
    automatic: bool = False
    """Whether the episode's end asked for it, not the agent."""


class Test(Line):
    """The last artefact on the test split."""

    score: float | None = None
    """The primary metric on the test split; None if the artefact was missing or malformed."""
    stderr: float | None = None
    """The standard error of the score; None if the artefact was graded once."""
    artefact: str = ""
    """Digest of what was graded."""
    kept: str = ""
    """Where its bytes lie, relative to the trajectory's folder; empty if they were not kept."""


class End(Line):
    """The last line: how it ended."""

    t: float = 0.0
    """When the episode ended."""
    ok: bool = False
    """Whether it ended without a failure of ours; only then has it a reward."""
    why: str = ""
    """`submit`, `turns`, `context`, `length`, `format`, or what verifiers stopped it for."""
    error: str | None = None
    """The infrastructure error that ended it; None if there was none."""
    reward: float | None = None
    """The sum of `terms`; None for a failed episode."""
    terms: Mapping[str, float] | None = None
    """What the reward is the sum of."""
    metrics: Mapping[str, float] = Field(default_factory=dict)
    """Scores, counts and times of the episode by name."""
    test: Test | None = None
    """The score on the test split; None if nothing was scored there."""
    branches: int | None = None
    """Branches of the verifiers trace, each a training sample; None if unknown."""
    trace_file: str = ""
    """Where the verifiers trace lies, relative to the trajectory's folder; empty where it was not kept."""

    @property
    def times(self) -> dict[str, float]:
        """Seconds by where they went: `agent` (all but grading), `model`, `exec`, `grading`, `queue`."""
        return {
            name.removeprefix("seconds_"): value
            for name, value in self.metrics.items()
            if name.startswith("seconds_")
        }


@dataclass(frozen=True)
class Trajectory:
    """One recorded episode."""

    path: Path
    version: int
    """Of its first line; 0 where it has none."""
    start: Start | None
    """None where it ended before it began."""
    steps: tuple[Step, ...]
    validations: tuple[Validation, ...]
    end: End | None
    """None while it is played, or where its run was killed."""

    def validations_of(self, step: Step) -> list[Validation]:
        """The gradings that a step asked for; those of the episode's end are not among them."""
        return [one for one in self.validations if one.turn == step.turn and not one.automatic]

    def messages(self) -> list[dict[str, str]]:
        """The conversation as the model saw it: `{"role", "content"}`, up to what it was shown last."""
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
    """One line of `read` as its type, of whatever version.

    Raises:
        ConfigError: it is of no kind that is known, or lacks what it must have.
    """
    kind = _KINDS.get(str(line.get("type")))
    if kind is None:
        raise ConfigError("not a line of a trajectory", where=where)
    data = dict(line)
    if kind is Step and data.get("v", 0) < 2:
        data["shown"], data["observation"] = data.get("observation", ""), None
    return validate(kind, data, where=f"{where}: {line['type']}")


def load(path: Path | str) -> Trajectory:
    """Reads one trajectory; one that is still written, or was cut off, is read as far as it goes.

    Raises:
        ConfigError: the file cannot be read or is no trajectory.
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
