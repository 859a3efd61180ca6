"""Defines the lines of a trajectory file, the record of one episode, as types.

`parse` converts lines of all versions of the format. Fields that an older version lacks get default values.
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
"""The version of the trajectory format in the files that this version of air writes."""


class Line(BaseModel):
    """Base class of the types of lines in a trajectory file, and of the types of objects inside the lines."""

    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)


class ToolUse(Line):
    """A use of one tool in an action of the model."""

    name: str
    """The tool's name."""
    args: tuple[str, ...] = ()
    """The tool's positional arguments, as text."""
    body: tuple[str, ...] | None = None
    """The lines of the text that follows the arguments in the action, such as the new content of a file. None
    if the tool takes no such text."""
    arguments: Mapping[str, Any] | None = None
    """The arguments by name, as JSON values. None if the action format has no named arguments."""


class Call(Line):
    """One action of the model, as the action format parsed it from the model's reply."""

    script: str = ""
    """The shell script to run; empty if the action contains none."""
    tool: ToolUse | None = None
    """The use of a tool; None if the action uses no tool."""
    ending: Literal["validate", "submit"] | None = None
    """`validate` (a request to grade the work so far) or `submit` (a request to grade the finished work), if
    the action ends with this command; else None."""
    answer: str = ""
    """The action as text, such as moves or an answer, if the agent has no shell, as in games; else empty."""


class MessageCall(Line):
    """A tool call in a reply of the model. The model server returned it in a field separate from the reply's
    text."""

    id: str = ""
    """The id of the call, to which the observation's message refers."""
    name: str
    """The tool's name."""
    arguments: str = ""
    """The arguments as the model wrote them: the JSON text of an object, unless they are malformed."""


class TokenRef(Line):
    """The place of a reply's tokens and log-probabilities: a range of nodes (messages with tokens) in the
    episode's trace, which the library `verifiers` records.

    The last node of the range is the reply. The nodes before it are the messages after the previous reply. If
    the prompt leaves out earlier reasoning, earlier messages change; then the changed copies are also in the
    range.
    """

    nodes: tuple[int, int] | None = None
    """The index of the first node, and the index after the last node. None if the reply is not in the
    trace."""
    prompt: int = 0
    """The number of tokens in the whole prompt, as the inference server counted them."""
    completion: int = 0
    """The number of tokens in the reply."""


class FileChange(Line):
    """A change of one file in the agent's workspace by one turn of the episode."""

    path: str
    """The path of the file, relative to the workspace."""
    status: Literal["added", "changed", "removed"]
    """Whether the turn added, changed or removed the file."""
    bytes: int = 0
    """The size of the file after the turn, in bytes; 0 if it was removed."""
    added: int = 0
    """The number of added lines; 0 if unknown."""
    removed: int = 0
    """The number of removed lines; 0 if unknown."""
    note: str = ""
    """The reason why the diff does not show the whole change of this file, such as `binary` or `cut`; empty
    if it shows the whole change."""


class Diff(Line):
    """The changes that one turn made to regular files in the workspace, the folder in which the agent
    works."""

    text: str = ""
    """The changes as a unified diff. `FileChange.note` says why the change of a file is missing in it."""
    files: tuple[FileChange, ...] = ()
    """The changed files. If too many files changed, some are missing here."""
    cut: bool = False
    """Whether `text` or `files` is incomplete, because too much changed."""
    seconds: float = 0.0
    """The time in seconds for computing the diff, which does not count as the agent's time."""
    problem: str = ""
    """The reason why the diff could not be computed; empty if it was computed."""


class WorldInfo(Line):
    """Data about the world (the environment in which the agent acted) of an episode that is not a research
    task."""

    replays: bool = False
    """Whether episodes can be repeated exactly: the same seed and the same actions give the same observations
    and rewards."""
    format_penalty: float = 0.0
    """The task's penalty for each reply that is not a valid action. The settings of the run may add to it."""
    facts: Mapping[str, str] = Field(default_factory=dict)
    """Descriptions of the world's facts (numbers about the episode), by the fact's name."""
    first: str = ""
    """The first observation."""


class Start(Line):
    """The first line of a trajectory: the episode's task, model, box (the isolated place for the agent's
    commands) and settings."""

    t: float = 0.0
    """The time when the episode began, in seconds since the epoch."""
    episode: str = ""
    """The episode's id, which is also the name of the trajectory's file."""
    trace: str = ""
    """The id of the trace, the record with tokens that the library `verifiers` made of this episode."""
    task: str
    """The task's id."""
    task_hash: str = ""
    """The SHA-256, in hex, of everything that the task consists of; empty if unknown."""
    seed: int = 0
    """The episode's seed."""
    training_step: int | None = None
    """The training step that trains on the episode or, in an evaluation, the step after which it is played.
    None without training, and in older files."""
    metric: str = ""
    """The name of the task's primary metric."""
    direction: Literal["higher", "lower"] | None = None
    """Whether higher or lower values of the metric are better. None in the oldest files."""
    split: str = "public"
    """The split of the task's data. `public`: computed from a seed in the public source code. Otherwise, the
    fingerprint of the secret from which the split was computed (see `air.tasks.splits`). Files without this
    field are from public splits."""
    baseline: float | None = None
    """The baseline score on the validation split; on a secret split, it was measured for that split. None if
    unknown."""
    world: WorldInfo | None = None
    """Data about the world (the agent's environment) if the task is not a research task, else None. If it is
    set, the fields about grading and boxes have no meaning."""
    scale: Mapping[str, Any] = Field(default_factory=dict)
    """The fields of the task's reward scale, by which a score is converted to a reward (see
    `air.tasks.spec.RewardScale`)."""
    pay: Mapping[str, Any] = Field(default_factory=dict)
    """The reward settings (see `air.rewards.terms.RewardSettings`), and `episode_seconds`, the episode's time
    limit."""
    counts: Literal["last", "best"] = "last"
    """The rule that selects the artefact (a state of the agent's files) that is graded on the test split in
    the end. `last`: the artefact of the last grading. `best`: the first artefact with the best score or, if
    no artefact has a score, the artefact of the last grading. Files without this field were recorded when it
    was always the last."""
    format: str = ""
    """The action format, the rule by which a reply becomes an action: its name, or the user's class as
    `module:Class`. Empty if unknown."""
    settings: Mapping[str, Any] = Field(default_factory=dict)
    """The settings of the harness, the program that calls the model (`max_observation_tokens`, `tokenizer`,
    …), and the settings that a subclass of `air.env.config.ResearchEnvConfig` adds."""
    max_turns: int | None = None
    """The maximum number of turns in the episode; None if there is no limit."""
    max_validates: int | None = None
    """The maximum number of times that the agent's action `validate` (a request to grade the work so far) is
    carried out. None: no limit, as in older files."""
    told_step: float = 0.0001
    """The rounding step of the scores that the agent was shown: a score was rounded to a multiple of this
    number."""
    task_roots: tuple[str, ...] = ()
    """The folders that were searched for the task; empty for tasks that ship with air."""
    mlgym_root: str | None = None
    """The path of the MLGym checkout in the run's settings; None if the settings had no such path."""
    harbor: Mapping[str, Any] = Field(default_factory=dict)
    """The run's settings for Harbor tasks (see `air.tasks.sources.harbor.settings`)."""
    trust: str = ""
    """The way in which grading uses the artefact (the agent's files), such as `data` or `code` (see
    `air.tasks.spec.TaskSpec`). With the values `evaluator` and `shared`, the agent could forge any score.
    Empty in older files."""
    isolation: str = ""
    """The kind of isolation of the box, the place in which the agent's commands ran: `container`; `process`,
    a plain process; or `none`, if the episode had no box."""
    image: str = ""
    """The name of the container image in which the agent's commands ran; empty without a container."""
    image_digest: str = ""
    """The digest of the container image when the box started; empty without a container."""
    workspace: str = "/workspace"
    """The path of the workspace, the folder in which the agent worked, inside its box (container)."""
    temporary: str = "/tmp"
    """The path of the folder for temporary files inside the agent's box (container)."""
    gpus: tuple[str, ...] = ()
    """The UUIDs of the GPUs that the agent's box (container) had; empty if it had none."""
    box_resets: int = 0
    """The number of earlier episodes that used the same box (container), which was reset after each; 0 if the
    box was new."""
    queue_seconds: float = 0.0
    """The time in seconds that the episode waited for its box, the isolated place for the agent's
    commands."""
    config_hash: str = ""
    """The SHA-256, in hex, of the settings of the run's environment."""
    versions: Mapping[str, str] = Field(default_factory=dict)
    """The versions, by name, of Python and of packages that can affect a result."""
    system: str = ""
    """The system prompt."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """The tools that were offered to the model server in each request, in the form of OpenAI's `tools`."""
    opening: tuple[str, str] | None = None
    """A user message, and a reply to it that no model wrote, which precede `prompt` in the conversation; None
    if there are none."""
    prompt: str = ""
    """The user message before the model's first reply."""
    model: str = ""
    """The name of the model that acted as the agent."""
    harness: str = "air"
    """The harness: the program that called the model and performed its actions. With `air`, actions are text;
    with other harnesses, they are tool calls."""
    origin: str = "air"
    """The program that recorded the episode: `air`, or the program from whose file it was imported."""


class Step(Line):
    """One turn of an episode: the model's reply, the action in it, and the text that the model received in
    return."""

    t: float = 0.0
    """The time when the turn ended, in seconds since the epoch."""
    turn: int = 0
    """The number of the turn, from 1. Turns whose reply has no action are counted, too."""
    reply: str
    """The full text of the model's reply, without reasoning that the model server returned in a separate
    field."""
    reasoning: str | None = None
    """The full reasoning of the model, if the model server returned it in a field separate from the reply's
    text; else None."""
    tool_calls: tuple[MessageCall, ...] = ()
    """The tool calls that the model server returned in a field separate from the reply's text; usually
    none."""
    action: str | None = None
    """The text of the action as the model wrote it; None if the reply has no action."""
    call: Call | None = None
    """The parsed action; None if the reply has no action, and in files of version 1."""
    observation: str | None = None
    """The full result of the action, such as a command's output; None without an action and in version 1."""
    shown: str = ""
    """The text that the model received after its reply. It can be a shortened form of `observation`."""
    left: int | None = None
    """The number of turns that remain after this one; None if turns are not limited."""
    code: int | None = None
    """The exit status of the action's script; None if no script ran."""
    timed_out: bool = False
    """Whether the script ran past the task's `limits.exec_seconds` and was killed."""
    truncated: bool = False
    """Whether `observation` lacks a part of the output, because the output was too long."""
    problem: str = ""
    """The reason why the reply has no action: `format` (malformed) or `length` (cut at the token limit).
    Empty if the reply has an action."""
    model_seconds: float = 0.0
    """The time in seconds that the model took to reply."""
    exec_seconds: float = 0.0
    """The time in seconds that the action ran in the agent's box, without the time for grading. If the world
    (the agent's environment) does not report this time, the whole time that it took for the action. 0 without
    an action, or if unknown."""
    tokens: TokenRef | None = None
    """The place of the reply's tokens in the episode's trace (the record that the library `verifiers` made);
    None if no trace was recorded."""
    reward: float | None = None
    """The reward that the world (the agent's environment) gave for the action; None without an action, and
    for research tasks, whose rewards are in `Validation.delta`."""
    done: bool = False
    """Whether the world (the agent's environment) ended the episode with this action; always false for
    research tasks."""
    diff: Diff | None = None
    """The changes that the turn made to the workspace; None if they were not recorded."""


class Validation(Line):
    """One grading of the artefact (the agent's files): after the agent's action `validate` or `submit`, or at
    the end of the episode."""

    t: float = 0.0
    """The time when the grading ended, in seconds since the epoch."""
    turn: int = 0
    """The number of the turn whose action caused the grading. If the end of the episode caused it, the number
    of the last turn."""
    score: float | None = None
    """The value of the task's primary metric; None if the artefact (the agent's files) was missing or
    malformed."""
    phi: float | None = None
    """φ, the score in normalised and clipped form; higher is better, whatever the metric. None if it was not
    computed."""
    anchor: float | None = None
    """The earlier φ (normalised score) with which `phi` was compared to compute the reward; None if there was
    no comparison."""
    delta: float = 0.0
    """The reward for this grading: `phi` minus `anchor`, or 0 in the cases that `air.rewards.delta`
    describes."""
    floor: float = 0.0
    """The noise floor: a change of φ (the normalised score) that is smaller than this value gives no
    reward."""
    stderr: float | None = None
    """The standard error of the score; None if the artefact was graded only once."""
    problem: str = ""
    """A description of what is wrong with the artefact; empty if the artefact has a score."""
    fault: str = ""
    """The error of the grader, if it failed twice on this artefact; else empty. It is never shown to the
    agent."""
    metrics: Mapping[str, float] = Field(default_factory=dict)
    """All metrics that the grader returned, by name."""
    artefact: str = ""
    """A hash of the graded artefact (the agent's files)."""
    kept: str = ""
    """The path of the stored copy of the graded artefact, relative to the trajectory's folder; empty if no
    copy was stored."""
    seconds: float = 0.0
    """The time in seconds of the grading, including the wait for a box (container) in which the grader
    ran."""
    remembered: bool = False
    """Whether the score was taken from a cache, without running the grader, because an equal artefact had
    been graded before."""
    automatic: bool = False
    """Whether the end of the episode caused the grading, and not an action of the agent."""


class Test(Line):
    """The score, on the test split, of the artefact (a state of the agent's files) that `Start.counts`
    selects."""

    score: float | None = None
    """The value of the primary metric on the test split; None if the artefact was missing or malformed."""
    stderr: float | None = None
    """The standard error of the score; None if the artefact was graded only once."""
    artefact: str = ""
    """The digest of the graded artefact."""
    kept: str = ""
    """The path of the stored artefact, relative to the trajectory's folder; empty if it was not stored."""


class End(Line):
    """The last line of a trajectory: how the episode ended, and its reward."""

    t: float = 0.0
    """The time when the episode ended, in seconds since the epoch."""
    ok: bool = False
    """Whether the episode ended without an infrastructure error; only then does it have a reward."""
    why: str = ""
    """The reason why the episode ended: `submit`, `done` (its world ended it), `turns`, `context` (the prompt
    became too long), `length` (a reply was cut), `format` (too many format errors), `killed` (a program in
    the box was killed), `history` (a program in the box changed its conversation with the model), `box` (the
    agent's commands ended their box), or the name of a stop condition of `verifiers`."""
    error: str | None = None
    """The message of the infrastructure error that ended the episode; None if there was none."""
    failed_action: str | None = None
    """The text of the action that was carried out when the infrastructure error occurred, or
    `[end of the episode]` for the last gradings. None if there was no error, if it occurred outside of
    actions, and in older files."""
    reward: float | None = None
    """The episode's reward, the sum of `terms`; None for a failed episode."""
    terms: Mapping[str, float] | None = None
    """The reward terms by name; None for a failed episode."""
    metrics: Mapping[str, float] = Field(default_factory=dict)
    """The scores, counts and times of the episode, by name."""
    facts: Mapping[str, float] = Field(default_factory=dict)
    """The world's facts (numbers by name), which are also in `metrics`; empty for research tasks."""
    close_error: str = ""
    """The error message if closing the world (the agent's environment) failed after the rewards were final;
    else empty."""
    test: Test | None = None
    """The score, on the test split, of the artefact that `Start.counts` selects; None if no artefact was
    graded on this split."""
    branches: int | None = None
    """The number of branches of the episode's trace, which is a tree of messages: each path from the root to
    a leaf becomes one training sample. None if unknown."""
    trace_file: str = ""
    """The path of the file with the episode's trace (the record with tokens that the library `verifiers`
    made), relative to the trajectory's folder; empty if it was not stored."""

    @property
    def times(self) -> dict[str, float]:
        """The times of the episode in seconds, by name: `model` (replies), `queue` (waiting for a box, the
        isolated place for commands), `exec` (running actions), `grading`, and others.

        `agent` is the total time that counts for the agent, without grading.
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
    """The first line (the episode's task, model and settings); None if the file has no such line, for example
    because the episode failed when it began."""
    steps: tuple[Step, ...]
    validations: tuple[Validation, ...]
    end: End | None
    """The last line; None if the episode is still running or its run was killed."""

    def validations_of(self, step: Step) -> list[Validation]:
        """Returns the gradings that the action of `step` caused, without those caused by the end of the
        episode."""
        return [one for one in self.validations if one.turn == step.turn and not one.automatic]

    def messages(self) -> list[dict[str, Any]]:
        """Returns the conversation as chat messages in OpenAI's form, from the system prompt to the last
        observation. The reasoning of a reply is in the field `reasoning_content` of its message. The reply in
        `Start.opening`, which no model wrote, has the field `loss`, which is false. After a reply with tool
        calls, the observation is repeated in one message of the role `tool` for each call."""
        if self.start is None:
            return []
        talk: list[dict[str, Any]] = []
        if self.start.system:
            talk.append({"role": "system", "content": self.start.system})
        if self.start.opening:
            said, answer = self.start.opening
            talk.append({"role": "user", "content": said})
            talk.append({"role": "assistant", "content": answer, "loss": False})
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
    """Converts one line of a trajectory file, a dictionary of any format version, to an object: a `Start`,
    `Step`, `Validation` or `End`, by the line's field `type`.

    Raises ConfigError, with `where` as the place in its message, if the type is unknown, or a field is
    missing or invalid.
    """
    kind = _KINDS.get(str(line.get("type")))
    if kind is None:
        raise ConfigError("not a line of a trajectory", where=where)
    data = dict(line)
    if kind is Step and data.get("v", 0) < 2:
        data["shown"], data["observation"] = data.get("observation", ""), None
    return validate(kind, data, where=f"{where}: {line['type']}")
