"""Defines what a tool is: a typed function that the model can call in an episode. Its JSON schema is made
from its signature and docstring:

    @tool
    def double(number: int) -> str:
        \"\"\"Doubles a whole number.

        Args:
            number: the number
        \"\"\"
        return str(2 * number)

`ToolSet` (`air.tools.tool_set`) runs tools for an episode.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, overload

from air.errors import ConfigError
from air.sandbox.contract.box import Box, BoxSpec
from air.tools.resource_pool import ResourcePool
from air.tools.shared_semaphore import Pool
from air.tools.signature import describe

Status = Literal["success", "error", "finish"]
"""The status of a tool call. `success`: the call has a result. `error`: the model made a mistake, or the tool
failed; the episode goes on. `finish`: the call ends the episode."""
_OWN_STATUSES: dict[str, Literal["success", "finish"]] = {
    "success": "success",
    "continue": "success",
    "finish": "finish",
    "terminal": "finish",
}
"""The values of the argument `status` of the decorator `tool`, with the value of `Tool.status` for each.
`continue` and `terminal` are the names in AgentFly, another framework that trains agents."""
MAX_LENGTH = 2048
"""The default maximum length, in characters, of a tool's observation: the text that the model sees after a
call."""
SECONDS = 60.0
"""The default time limit of a tool call, in seconds."""
_SHORTEST = 64
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class ToolResult:
    """The result of one tool call."""

    name: str
    """The tool's name as the model wrote it. An unknown tool's name is cut to 80 characters."""
    arguments: Mapping[str, Any]
    """The parsed arguments of the call. They are empty if there is no such tool, or if the arguments cannot
    be parsed or do not match the tool's schema."""
    observation: str
    """The text that the model sees as the result of its call."""
    status: Status = "success"
    info: Mapping[str, Any] = field(default_factory=dict)
    """Further JSON values by name, for programs that call tools. The model does not see them."""

    @property
    def prediction(self) -> str:
        """The final answer, if the call ended the episode: `info["prediction"]`, or the observation if `info`
        has no such key."""
        return str(self.info.get("prediction", self.observation))


class ToolError(Exception):
    """Raised by a tool's function for a mistake of the model. The model sees the exception's message as the
    observation."""


@dataclass(frozen=True)
class Reply:
    """The return value of a tool's function. A function that returns only a string cannot set a status or
    `info`; with a Reply it can. `observation` is the text that the model sees."""

    observation: str
    status: Status = "success"
    info: Mapping[str, Any] = field(default_factory=dict)


def finish(observation: str, **info: Any) -> Reply:
    """Returns a reply that ends the episode. The keyword arguments become the reply's `info`. The keyword
    argument `prediction` is the final answer that is graded; without it, `observation` is graded."""
    return Reply(observation, "finish", info)


@dataclass(frozen=True)
class ToolContext:
    """What a tool gets to make its state (an object that it keeps for one episode): the episode's seed, the
    public fields of its dataset row, and its box (sandbox)."""

    seed: int
    fields: Mapping[str, Any] = field(default_factory=dict)
    """The public fields of the episode's dataset row. They never include the reference answer."""
    box: Box | None = None
    """The box (sandbox) of the episode; None if no tool needs one."""


@dataclass(frozen=True)
class Tool:
    """A tool: a function with a name, a description, a JSON schema and limits. The decorator `tool` makes a
    Tool from a function, and `OpenTools` calls the function."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """The JSON schema of the arguments of a call: an object with one property for each parameter."""
    function: Callable[..., Any]
    """The function that a call runs. Its arguments are the state, if the tool has one, and the call's
    arguments by name. It returns a string, a `Reply`, a dict with the text under the key `observation`, or
    another JSON value. A function that is not async is called in a thread."""
    state: Callable[[ToolContext], Any] | ResourcePool | None = None
    """A function, sync or async, that makes the tool's state for one episode: an object that `function` gets
    as its first argument in every call. Tools with the same `state` function share one object. If the object
    has a method `close`, sync or async, it is called at the end of the episode. If this field is a
    `ResourcePool`, the episode borrows the object from it instead. None: the tool has no state."""
    box: BoxSpec | None = None
    """The specification of the box (sandbox) that the tool needs; None if the tool needs no box."""
    max_length: int = MAX_LENGTH
    """The maximum length, in characters, of an observation (the text that the model sees after a call). A
    note replaces the middle of a longer observation."""
    seconds: float = SECONDS
    """The time limit of a call in seconds. Python cannot stop a thread, so a function that is not async
    should end by itself within this time."""
    patience: float = 0.0
    """The number of seconds that a call may take in addition to `seconds`, because it may have to wait for a
    call of another episode. The model is told `seconds` as the time limit."""
    state_seconds: float | None = None
    """The time limit for making the state, in seconds. None: `seconds`, but at least 60."""
    episodes: Pool | None = None
    """The pool (a semaphore) that limits how many episodes in this process may have a state of this tool at
    the same time. None: no limit."""
    calls: Pool | None = None
    """The pool (a semaphore) that limits how many calls of this tool may run at the same time in this
    process, in all episodes together. None: no limit."""
    outcome: Callable[[Any], str] | None = None
    """A function that computes the episode's final answer from the tool's state, such as the result of a
    game. This answer replaces the agent's own answer. None: the agent's answer is graded."""
    replays: bool = True
    """Whether the same seed and the same calls always give the same observations, so that a recorded episode
    can be replayed. False, for example, for a tool that uses the network."""
    digest: str = ""
    """A string that changes if the data on which the tool's results depend, such as a corpus, change. Empty
    if there are no such data."""
    status: Literal["success", "finish"] = "success"
    """The status of the calls that succeed. With `finish`, each of them ends the episode."""

    def __post_init__(self) -> None:
        where = f"tool {self.name!r:.80}"
        if not _NAME.fullmatch(self.name):
            remedy = "use 1 to 64 letters, digits, `_` and `-` (ASCII)"
            raise ConfigError("the name cannot be used", where=where, remedy=remedy)
        if self.max_length < _SHORTEST:
            raise ConfigError(f"max_length must be at least {_SHORTEST}", where=where)
        if not 0 < self.seconds < float("inf"):
            raise ConfigError("seconds must be a positive number", where=where)
        if self.episodes is not None and isinstance(self.state, ResourcePool):
            message = "pool_size cannot be used together with a ResourcePool"
            remedy = "leave pool_size out: the `size` of the ResourcePool limits the episodes"
            raise ConfigError(message, where=where, remedy=remedy)

    @property
    def places(self) -> Pool | None:
        """The semaphore that limits how many episodes have a state of this tool at the same time: `episodes`,
        or that of the tool's `ResourcePool` in the current event loop. None: no limit."""
        return self.state.places if isinstance(self.state, ResourcePool) else self.episodes

    @property
    def state_limit(self) -> float:
        """The time limit for making the tool's state (the object that it keeps for an episode), in seconds:
        `state_seconds`, or its default if that is None."""
        return max(self.seconds, SECONDS) if self.state_seconds is None else self.state_seconds

    def with_digest(self, digest: str) -> Tool:
        """Returns a copy of this tool whose field `digest` is `digest`: a string that changes if the data on
        which the tool's results depend change."""
        return dataclasses.replace(self, digest=digest)

    @property
    def schema(self) -> dict[str, Any]:
        """The tool's JSON schema in the format of the field `tools` in OpenAI's API."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
        }
        return {"type": "function", "function": function}

    @property
    def text(self) -> str:
        """A description of the tool for a prompt: a line such as `round(x, [digits]): Rounds a number.`, with
        optional parameters in brackets, and one line for each parameter with its type and description."""
        properties: Mapping[str, Any] = self.parameters.get("properties") or {}
        required = self.parameters.get("required") or ()
        names = [name if name in required else f"[{name}]" for name in properties]
        lines = [f"{self.name}({', '.join(names)}): {self.description}"]
        for name, schema in properties.items():
            about = schema.get("description", "") if isinstance(schema, Mapping) else ""
            lines.append(f"  {name} ({_kind(schema)}){': ' if about else ''}{about}")
        return "\n".join(lines)


def _kind(schema: Any) -> str:
    """Returns text for a prompt that names the type of a parameter with the JSON schema `schema`, such as
    `integer or null`, or `'a' | 'b'` if only these values are allowed."""
    if not isinstance(schema, Mapping):
        return "any"
    if choices := schema.get("enum"):
        return " | ".join(map(repr, choices))
    if parts := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(map(_kind, parts))
    kind = schema.get("type", "any")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...


@overload
def tool(
    *,
    name: str = "",
    description: str = "",
    status: Literal["success", "finish", "continue", "terminal"] = "success",
    max_length: int = MAX_LENGTH,
    seconds: float = SECONDS,
    state: Callable[[ToolContext], Any] | ResourcePool | None = None,
    box: BoxSpec | None = None,
    pool_size: int | None = None,
    calls_at_once: int | None = None,
    outcome: Callable[[Any], str] | None = None,
    replays: bool = True,
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str = "",
    description: str = "",
    status: Literal["success", "finish", "continue", "terminal"] = "success",
    max_length: int = MAX_LENGTH,
    seconds: float = SECONDS,
    state: Callable[[ToolContext], Any] | ResourcePool | None = None,
    box: BoxSpec | None = None,
    pool_size: int | None = None,
    calls_at_once: int | None = None,
    outcome: Callable[[Any], str] | None = None,
    replays: bool = True,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Decorator that makes a `Tool` from a typed function, sync or async. The tool's name and description are
    the function's name and docstring, unless `name` and `description` replace them. With the `status`
    `finish` (or `terminal`, as AgentFly calls it), each call that succeeds ends the episode.

    `state` is a function that makes an object for each episode, such as a game; the decorated function gets
    it as its first argument. `state` can also be a `ResourcePool`, from which episodes borrow such objects
    one after the other. `pool_size` limits how many episodes in this process may have an object of a function
    `state` at the same time; further episodes wait. `calls_at_once` limits how many calls, in all episodes
    together, run at the same time; the wait does not count towards a call's time limit. `outcome` computes
    the episode's final answer from the object; it replaces the agent's answer. `max_length` (of an
    observation), `seconds` (of a call), `box` (the sandbox that the tool needs) and `replays` become the
    fields of `Tool` with these names. Raises ConfigError if an argument is invalid, or if no schema can be
    made from the signature and the docstring.
    """

    def make(typed: Callable[..., Any]) -> Tool:
        where = f"tool {name or typed.__name__!r}"
        if pool_size is not None and state is None:
            remedy = "use calls_at_once"
            raise ConfigError(
                "pool_size is only for tools with a state", where=where, remedy=remedy
            )
        if outcome is not None and state is None:
            raise ConfigError("outcome is only for tools with a state", where=where)
        if status not in tuple(_OWN_STATUSES):
            remedy = "use `success` or `finish`"
            raise ConfigError(f"unknown status {status!r:.40}", where=where, remedy=remedy)
        text, parameters = describe(typed, skip_first=state is not None, about=description)
        return Tool(
            name=name or typed.__name__,
            description=text,
            parameters=parameters,
            function=typed,
            status=_OWN_STATUSES[status],
            state=state,
            box=box,
            max_length=max_length,
            seconds=seconds,
            episodes=_pool(pool_size, "pool_size", where),
            calls=_pool(calls_at_once, "calls_at_once", where),
            outcome=outcome,
            replays=replays,
        )

    return make if function is None else make(function)


def _pool(size: int | None, key: str, where: str) -> Pool | None:
    if size is not None and size < 1:
        raise ConfigError(f"{key} must be a positive integer", where=where)
    return None if size is None else Pool(size)
