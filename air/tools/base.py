"""A tool: a typed function that a world offers to the model; its schema comes from its signature and
docstring.

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
from air.tools.pool import Pool
from air.tools.signature import describe

Status = Literal["success", "error", "finish"]
"""`error`: the model did something wrong, or the tool failed. `finish`: the call ends the episode."""
MAX_LENGTH = 2048
"""The largest number of characters of an observation, unless a tool says otherwise."""
SECONDS = 60.0
"""The time limit of a call, unless a tool says otherwise."""
_SHORTEST = 64
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class ToolResult:
    """The result of one call."""

    name: str
    """The tool's name, as the model wrote it."""
    arguments: Mapping[str, Any]
    """The arguments, as the model wrote them; empty if they could not be read."""
    observation: str
    """The text for the model."""
    status: Status = "success"
    info: Mapping[str, Any] = field(default_factory=dict)
    """JSON values for records and metrics. The model does not see them."""

    @property
    def prediction(self) -> str:
        """The final answer if the call ended the episode: `prediction` of `info`, or else the observation."""
        return str(self.info.get("prediction", self.observation))


class ToolError(Exception):
    """Exception for what the model did wrong. The model sees its message."""


@dataclass(frozen=True)
class Reply:
    """What a tool's function returns if a text does not suffice."""

    observation: str
    status: Status = "success"
    info: Mapping[str, Any] = field(default_factory=dict)


def finish(observation: str, **info: Any) -> Reply:
    """Returns the reply that ends the episode. The observation is the final answer, which is checked, unless
    `prediction` gives another text."""
    return Reply(observation, "finish", info)


@dataclass(frozen=True)
class ToolContext:
    """What one episode gives its tools."""

    seed: int
    fields: Mapping[str, Any] = field(default_factory=dict)
    """The public fields of the episode's row, never the answer."""
    box: Box | None = None
    """The box of the episode; None if no tool needs one."""


@dataclass(frozen=True)
class Tool:
    """A tool. `tool` makes one of a function; `ToolSet` calls it."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """The JSON schema of the arguments."""
    function: Callable[..., Any]
    """Takes the state, if there is one, and the arguments by name. Returns a text, a `Reply`, or a JSON
    value. Async, or else called in a thread."""
    state: Callable[[ToolContext], Any] | None = None
    """Makes the state of an episode; may be async. Tools of an episode with the same `state` share it. At
    the episode's end, its method `close` is called if it has one; it may be async, too."""
    box: BoxSpec | None = None
    """The box that the tool needs; None if it needs none."""
    max_length: int = MAX_LENGTH
    """The largest number of characters of an observation. Longer ones lose their middle, and say so."""
    seconds: float = SECONDS
    """The time limit of a call. A thread cannot be ended: a function that is not async must end itself."""
    episodes: Pool | None = None
    """The bound on episodes that have a state of this tool at once in this process. None: no bound."""
    calls: Pool | None = None
    """The bound on calls of this tool at once in this process, of all episodes. None: no bound."""
    outcome: Callable[[Any], str] | None = None
    """Returns the episode's final answer from the state, such as the result of a game. It counts in place of
    whatever the agent answers. None: the agent's answer counts."""
    replays: bool = True
    """Whether the same seed and calls give the same observations. False for a tool that asks the
    network."""
    digest: str = ""
    """A digest of the data that decide results, such as a corpus."""

    def __post_init__(self) -> None:
        where = f"tool {self.name!r:.80}"
        if not _NAME.fullmatch(self.name):
            remedy = "use 1 to 64 letters, digits, `_` and `-` (ASCII)"
            raise ConfigError("the name cannot be used", where=where, remedy=remedy)
        if self.max_length < _SHORTEST:
            raise ConfigError(f"max_length must be at least {_SHORTEST}", where=where)
        if not 0 < self.seconds < float("inf"):
            raise ConfigError("seconds must be a positive number", where=where)

    def with_digest(self, digest: str) -> Tool:
        """Returns this tool with the digest of its data."""
        return dataclasses.replace(self, digest=digest)

    @property
    def schema(self) -> dict[str, Any]:
        """The tool in the form of OpenAI's `tools`."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
        }
        return {"type": "function", "function": function}

    @property
    def text(self) -> str:
        """The tool as text for a prompt: its call, its description, its parameters."""
        properties: Mapping[str, Any] = self.parameters.get("properties") or {}
        required = self.parameters.get("required") or ()
        names = [name if name in required else f"[{name}]" for name in properties]
        lines = [f"{self.name}({', '.join(names)}): {self.description}"]
        for name, schema in properties.items():
            about = schema.get("description", "") if isinstance(schema, Mapping) else ""
            lines.append(f"  {name} ({_kind(schema)}){': ' if about else ''}{about}")
        return "\n".join(lines)


def _kind(schema: Any) -> str:
    """Returns the type of a parameter as text."""
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
    max_length: int = MAX_LENGTH,
    seconds: float = SECONDS,
    state: Callable[[ToolContext], Any] | None = None,
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
    max_length: int = MAX_LENGTH,
    seconds: float = SECONDS,
    state: Callable[[ToolContext], Any] | None = None,
    box: BoxSpec | None = None,
    pool_size: int | None = None,
    calls_at_once: int | None = None,
    outcome: Callable[[Any], str] | None = None,
    replays: bool = True,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Decorator: makes a tool of a typed function, sync or async. Without `name` and `description`, the tool
    has the function's name and its docstring's text. With `state`, the function's first parameter is the
    state, and `pool_size` bounds the number of episodes that have one at once; further episodes wait.
    `calls_at_once` bounds the calls of all episodes; a call's time begins when its turn has come. `outcome`
    returns the final answer from the state, in place of what the agent answers.
    Raises ConfigError if the signature or the docstring does not suffice for a schema."""

    def make(typed: Callable[..., Any]) -> Tool:
        where = f"tool {name or typed.__name__!r}"
        if pool_size is not None and state is None:
            remedy = "use calls_at_once"
            raise ConfigError(
                "pool_size is only for tools with a state", where=where, remedy=remedy
            )
        if outcome is not None and state is None:
            raise ConfigError("outcome is only for tools with a state", where=where)
        text, parameters = describe(typed, skip_first=state is not None, about=description)
        return Tool(
            name=name or typed.__name__,
            description=text,
            parameters=parameters,
            function=typed,
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
