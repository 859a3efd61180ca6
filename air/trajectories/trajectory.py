"""Declares the lines of a trajectory file as types.

Lines of all versions of the format can be parsed; fields that an older version lacks get default values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from air.config import validate
from air.errors import ConfigError

VERSION = 2
"""The version of the format that this version of air writes."""


class Line(BaseModel):
    """Base class of the lines of a trajectory file and of the objects inside them."""

    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)


class ToolUse(Line):
    """The model's use of one tool."""

    name: str
    """The tool's name."""
    args: tuple[str, ...] = ()
    """The tool's arguments, as text."""
    body: tuple[str, ...] | None = None
    """Lines of text after the arguments, such as a file's new content; None if the tool takes none."""
    arguments: Mapping[str, Any] | None = None
    """The arguments by name, as JSON values; None if the action format has none."""


class Call(Line):
    """One action of the model, as the action format parsed it from the model's reply."""

    script: str = ""
    """The shell script to run; empty if the action has none."""
    tool: ToolUse | None = None
    """The tool call; None if the action calls no tool."""
    ending: Literal["validate", "submit"] | None = None
    """The special command that ends the action: `validate` or `submit`; None if neither does."""
    answer: str = ""
    """An action as text, in a world without a shell, such as moves or an answer; empty if there is none."""


class MessageCall(Line):
    """A tool call of a reply, as the model server took it out of the reply's text."""

    id: str = ""
    """The id that the observation named."""
    name: str
    """The tool's name."""
    arguments: str = ""
    """The arguments as the model wrote them: the JSON text of an object, unless they are malformed."""


class TokenRef(Line):
    """The place of a reply's tokens and logprobs: a range of nodes in the episode's verifiers trace.

    The last node of the range is the reply; before it are the messages that came after the previous reply. If
    the prompt leaves out earlier reasoning, earlier messages that change because of this are there too.
    """

    nodes: tuple[int, int] | None = None
    """Index of the first node, and index after the last one; None if the reply is not in the trace."""
    prompt: int = 0
    """Number of tokens in the whole prompt, as the inference server counted them."""
    completion: int = 0
    """Number of tokens in the reply."""


class FileChange(Line):
    """One file that a step changed."""

    path: str
    """Path of the file, relative to the workspace."""
    status: Literal["added", "changed", "removed"]
    """Whether the step added, changed or removed the file."""
    bytes: int = 0
    """Size of the file after the step, in bytes."""
    added: int = 0
    """Number of lines added; 0 if unknown."""
    removed: int = 0
    """Number of lines removed; 0 if unknown."""
    note: str = ""
    """The reason why the diff lacks a part of this file's change, e.g. `binary` or `cut`; else empty."""


class Diff(Line):
    """The changes that one step made to the workspace's regular files."""

    text: str = ""
    """The changes as a unified diff; `FileChange.note` says why changes of a file are missing."""
    files: tuple[FileChange, ...] = ()
    """The files that changed. If too many files changed, the list is incomplete."""
    cut: bool = False
    """Whether `text` or `files` is incomplete because too much changed."""
    seconds: float = 0.0
    """Time in seconds that was needed to compute the diff. It does not count as the episode's time."""
    problem: str = ""
    """The reason why the diff could not be computed; empty if it could."""


class WorldInfo(Line):
    """The facts about a trajectory's world, if the world is not a research task."""

    replays: bool = False
    """Whether the same seed and the same actions give the same observations and rewards."""
    format_penalty: float = 0.0
    """The task's penalty for a reply that is not an action; the settings of the run may add a penalty."""
    facts: Mapping[str, str] = Field(default_factory=dict)
    """Explains each of the world's facts (numbers about the episode), by the fact's name."""
    first: str = ""
    """The first observation."""


class Start(Line):
    """The first line of a trajectory: the episode's task, model, box and settings."""

    t: float = 0.0
    """When the episode began, in seconds since the epoch."""
    episode: str = ""
    """The episode's id; the trajectory's file has this name."""
    trace: str = ""
    """The id of the verifiers trace that contains the episode's tokens."""
    task: str
    """The task's id."""
    task_hash: str = ""
    """SHA-256 of everything that the task is made of, in hex."""
    seed: int = 0
    """The episode's seed."""
    training_step: int | None = None
    """The training step that trains on the episode, or after which an evaluation plays it; None without
    training, and in older files."""
    metric: str = ""
    """The name of the task's primary metric."""
    direction: Literal["higher", "lower"] | None = None
    """Whether a higher or a lower value of the metric is better; None in the oldest files."""
    split: str = "public"
    """How the task's data were split: `public`, by the seed that anyone can read in the source code, or the
    fingerprint of a secret (see `air.tasks.splits`). Files without this field are from public splits."""
    baseline: float | None = None
    """The baseline score on the validation split. On a secret split, it was measured on that split."""
    world: WorldInfo | None = None
    """The world, if it is not a research task. Then the fields about grading and boxes have no meaning."""
    scale: Mapping[str, Any] = Field(default_factory=dict)
    """The task's settings for how a score becomes a reward: the fields of `air.tasks.spec.RewardScale`."""
    pay: Mapping[str, Any] = Field(default_factory=dict)
    """The fields of `air.rewards.terms.RewardSettings`, and `episode_seconds`, the episode's time limit."""
    counts: Literal["last", "best"] = "last"
    """Which validated artefact counts at the end, and was graded on the test split: that of the `last`
    validate, or the first with the `best` score. Files without this field are from when it was the last."""
    format: str = ""
    """The action format: its name, or its class as `module:Class`; empty if unknown."""
    settings: Mapping[str, Any] = Field(default_factory=dict)
    """Settings of the harness (`max_observation_tokens`, `tokenizer`, …), and the settings that a subclass of
    `air.env.config.ResearchEnvConfig` adds."""
    max_turns: int | None = None
    """The largest number of turns that the episode can have; None if there is no limit."""
    max_validates: int | None = None
    """The number of validates by the agent that are scored; None: no limit, as in older files."""
    told_step: float = 0.0001
    """The scores that the agent read were rounded to a multiple of this step."""
    task_roots: tuple[str, ...] = ()
    """Folders in which the task was searched for; empty for the tasks that ship with air."""
    mlgym_root: str | None = None
    """Path of the checkout of MLGym in the run's settings; None if the settings named no checkout."""
    harbor: Mapping[str, Any] = Field(default_factory=dict)
    """The run's settings for Harbor's tasks (see `air.tasks.sources.harbor.settings`)."""
    trust: str = ""
    """How grading uses the artefact, such as `data` or `code` (see `air.tasks.spec.TaskSpec`). With
    `evaluator` and `shared`, the agent could make the evaluation print any score. Empty in older files."""
    isolation: str = ""
    """How the box isolates the agent: `container`, or `process` for a plain process without a container.
    `none`: the episode had no box."""
    image: str = ""
    """Name of the box's container image; empty if the box is a plain process."""
    image_digest: str = ""
    """Digest that the container image had when the box started; empty if the box is a plain process."""
    workspace: str = "/workspace"
    """The workspace's path inside the box."""
    temporary: str = "/tmp"
    """Path of the folder for temporary files inside the box."""
    gpus: tuple[str, ...] = ()
    """UUIDs of the box's GPUs."""
    box_resets: int = 0
    """The number of earlier episodes that used the box, which was reset after each; 0 if it was new."""
    queue_seconds: float = 0.0
    """Time that the episode waited for its box, in seconds."""
    config_hash: str = ""
    """SHA-256 of the settings of the run's environment, in hex."""
    versions: Mapping[str, str] = Field(default_factory=dict)
    """Versions of Python and of the packages that can affect a result, by name."""
    system: str = ""
    """The system prompt."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """The tools that each request offered to the model server, in the form of OpenAI's `tools`."""
    prompt: str = ""
    """The first user message."""
    model: str = ""
    """The name of the model that acted as the agent."""
    harness: str = "air"
    """The program that called the model and ran its actions. With `air`, actions are text; with others, tool
    calls."""
    origin: str = "air"
    """Which program recorded the episode: `air`, or the one from whose file it was imported."""


class Step(Line):
    """One turn of an episode: the model's reply, the action in it, and what the model received for it."""

    t: float = 0.0
    """When the turn ended, in seconds since the epoch."""
    turn: int = 0
    """Number of the turn, from 1. A turn in which the reply has no action counts too."""
    reply: str
    """The model's reply, in full, without the reasoning that the model server returned apart from it."""
    reasoning: str | None = None
    """The model's reasoning, in full, if the model server returned it apart from the reply; else None."""
    tool_calls: tuple[MessageCall, ...] = ()
    """The tool calls that the model server returned apart from the reply's text; usually none."""
    action: str | None = None
    """The action's text as the model wrote it; None if the reply has no action."""
    call: Call | None = None
    """The parsed action; None if the reply has no action, and in files of version 1."""
    observation: str | None = None
    """The full result of the action, such as a command's output; None without an action and in version 1."""
    shown: str = ""
    """The text that the model received after its reply; it can be shorter than `observation`."""
    left: int | None = None
    """Number of remaining turns after this one; None if turns are not limited."""
    code: int | None = None
    """Exit status of the script; None if no script ran."""
    timed_out: bool = False
    """Whether the script ran past the task's `limits.exec_seconds` and was killed."""
    truncated: bool = False
    """Whether a part of the output is missing in `observation` because the output was too long."""
    problem: str = ""
    """Why the reply has no action: `format` (malformed) or `length` (cut off); empty if it has one."""
    model_seconds: float = 0.0
    """Time that the model took to reply, in seconds."""
    exec_seconds: float = 0.0
    """Time in seconds that the action ran in the box, without the time for grading."""
    tokens: TokenRef | None = None
    """The place of the reply's tokens; None if no verifiers trace was recorded."""
    reward: float | None = None
    """The reward that the world gave for the action; None without an action, and for research tasks."""
    done: bool = False
    """Whether the action ended the episode in its world; always false for research tasks."""
    diff: Diff | None = None
    """The changes that the step made to the workspace; None if they were not recorded."""


class Validation(Line):
    """One grading of the artefact: by the agent's `validate` or `submit`, or at the end of the episode."""

    t: float = 0.0
    """The time when the grading ended, in seconds since the epoch."""
    turn: int = 0
    """Number of the turn in which the artefact was graded, or of the last turn if the end of the episode
    caused it."""
    score: float | None = None
    """The value of the task's primary metric; None if the artefact was missing or malformed."""
    phi: float | None = None
    """The normalised and clipped score φ, of which a higher value is better; None if it was not computed."""
    anchor: float | None = None
    """The earlier φ to which `phi` was compared to compute the reward; None if there was no comparison."""
    delta: float = 0.0
    """The reward that this grading earned."""
    floor: float = 0.0
    """The noise floor of this grading: a change of φ smaller than this value earns no reward."""
    stderr: float | None = None
    """The standard error of the score; None if the artefact was graded only once."""
    problem: str = ""
    """What is wrong with the artefact; empty if it has a score."""
    fault: str = ""
    """The error with which the grader failed twice on the artefact; else empty. The agent never sees it."""
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
    """The score on the test split of the artefact that counts (see `Start.counts`)."""

    score: float | None = None
    """The primary metric on the test split; None if the artefact was missing or malformed."""
    stderr: float | None = None
    """The standard error of the score; None if the artefact was graded only once."""
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
    """Why the episode ended: `submit`, `done` (its world ended it), `turns`, `context`, `length`, `format`,
    `killed`, `history` (a program in the box changed its conversation with the model), `box` (the agent's
    commands ended their box), or one of verifiers' stop conditions."""
    error: str | None = None
    """The message of the infrastructure error that ended the episode; None if there was none."""
    reward: float | None = None
    """The sum of `terms`; None for a failed episode."""
    terms: Mapping[str, float] | None = None
    """The terms whose sum is the reward, by name; None for a failed episode."""
    metrics: Mapping[str, float] = Field(default_factory=dict)
    """Scores, counts and times of the episode, by name."""
    facts: Mapping[str, float] = Field(default_factory=dict)
    """The world's facts (numbers by name); empty for research tasks. `metrics` has them too."""
    close_error: str = ""
    """The error with which the world failed to close, after the rewards were settled; else empty."""
    test: Test | None = None
    """The score on the test split of the artefact that counts; None if no artefact was graded there."""
    branches: int | None = None
    """Number of branches of the verifiers trace; each branch becomes one training sample. None if unknown."""
    trace_file: str = ""
    """Path of the file with the verifiers trace, relative to the trajectory's folder; empty if not stored."""

    @property
    def times(self) -> dict[str, float]:
        """Seconds spent on `model` replies, on `queue` (waiting for a box), on `exec`, `grading`, ….

        `agent` is the whole time that counts for the agent, without grading.
        """
        return {
            name.removeprefix("seconds_"): value
            for name, value in self.metrics.items()
            if name.startswith("seconds_")
        }


@dataclass(frozen=True)
class Trajectory:
    """One recorded episode: all lines of its trajectory file, as objects."""

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
        """Returns the gradings that the action of `step` caused, not those at the episode's end."""
        return [one for one in self.validations if one.turn == step.turn and not one.automatic]

    def messages(self) -> list[dict[str, Any]]:
        """Returns the conversation, from the prompts to the last observation, as chat messages. The reasoning
        of a reply is the field `reasoning_content` of its message; the answer to a reply with tool calls is
        one message of the role `tool` for each call."""
        if self.start is None:
            return []
        talk: list[dict[str, Any]] = []
        if self.start.system:
            talk.append({"role": "system", "content": self.start.system})
        talk.append({"role": "user", "content": self.start.prompt})
        for step in self.steps:
            reasoning = {"reasoning_content": step.reasoning} if step.reasoning else {}
            reply: dict[str, Any] = {"role": "assistant", "content": step.reply, **reasoning}
            if not step.tool_calls:
                talk += [reply, {"role": "user", "content": step.shown}]
                continue
            functions = [call.model_dump(exclude={"id"}) for call in step.tool_calls]
            calls = zip(step.tool_calls, functions, strict=True)
            reply["tool_calls"] = [
                {"id": call.id, "type": "function", "function": f} for call, f in calls
            ]
            talk.append(reply)
            talk += [
                {"role": "tool", "tool_call_id": call.id, "content": step.shown}
                for call in step.tool_calls
            ]
        return talk


_KINDS: dict[str, type[Line]] = {"start": Start, "step": Step, "validate": Validation, "end": End}


def parse(line: Mapping[str, Any], *, where: str = "trajectory") -> Line:
    """Converts a line of any version, as `read` yields it, to a `Start`, `Step`, `Validation` or `End`.

    Raises ConfigError, naming `where`, if the type is unknown, or a field is missing or invalid.
    """
    kind = _KINDS.get(str(line.get("type")))
    if kind is None:
        raise ConfigError("not a line of a trajectory", where=where)
    data = dict(line)
    if kind is Step and data.get("v", 0) < 2:
        data["shown"], data["observation"] = data.get("observation", ""), None
    return validate(kind, data, where=f"{where}: {line['type']}")
