"""The settings of `air serve tools`, a server that runs tools for clients."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from air.actions import ActionFormat
from air.errors import ConfigError
from air.serve.http.settings import ListenConfig
from air.serve.tools.tool_names import calling, load_named
from air.tools import ResourcePool, ToolSet

KEY_ENV = "AIR_MODEL_KEY"
"""The name of the environment variable with the API key for the server at `model_url`, which runs the
model."""


class ToolsConfig(ListenConfig):
    """Settings of a tool server (`air serve tools`), which runs tools, such as a code interpreter, for
    clients."""

    tools: tuple[str, ...] = Field(min_length=1)
    """The tools that the server runs. Each is the name of a tool that ships with air, a function
    (`FILE.py:NAME` or `MODULE:NAME`), or the path of a TOML file with the key `tools`. Relative paths are
    relative to the current folder."""
    public: tuple[str, ...] = ()
    """The names of the fields that tools may read in the entries of a request's `extra_fields`, such as the
    state of a game. Empty: tools may read none of them."""
    max_sessions: int = Field(32, ge=1)
    """The maximum number of trajectories (sequences of a client's tool calls that share their state) and
    chats that are open at the same time. Each has its own box (container or process) if the tools need
    one."""
    idle_seconds: float = Field(900.0, gt=0, allow_inf_nan=False)
    """If a client sends no request for a trajectory for this number of seconds, the server ends the
    trajectory (a sequence of a client's tool calls that share their state)."""
    session_seconds: float = Field(3600.0, gt=0, allow_inf_nan=False)
    """The maximum lifetime in seconds of a trajectory (a sequence of a client's tool calls that share their
    state), even if it is used all the time. A running request is not interrupted; the trajectory ends after
    it."""
    queue_seconds: float = Field(60.0, gt=0, allow_inf_nan=False)
    """Seconds for which a request may wait while `max_sessions` trajectories and chats are open. After this
    time, the request is refused."""
    max_queued: int = Field(1000, ge=0)
    """The maximum number of requests that wait because `max_sessions` trajectories and chats are open.
    Further requests are refused at once."""
    max_actions: int = Field(1024, ge=1)
    """The maximum number of actions (replies of a model) in one request. A request with more actions is
    refused."""
    model_url: str = ""
    """The URL of a server with OpenAI's chat completions API, and with its completions API if clients send
    prompts as text. Its model answers, and calls the tools. Empty: the tool server handles no chats and no
    such prompts."""
    model: str = ""
    """The name of the model at `model_url`. Clients of this tool server must use the same name in their
    requests."""
    format: str = "tool_calls"
    """The name of the action format for chats: the syntax in which the model writes tool calls."""
    call_ends: tuple[str, ...] = ()
    """The strings at which the model is stopped when it completes a text, so that the server performs the
    tool call before such a string. Empty: the ends of the call syntaxes of the server's tools, such as
    `</python>`."""
    max_turns: int = Field(8, ge=1, le=1000)
    """The maximum number of the model's replies in one chat or completion of a text. If the last reply of a
    chat is no final answer, the client gets this reply, with the finish reason `length`. In the last reply to
    a text, the model is not stopped at tool calls."""
    model_seconds: float = Field(600.0, gt=0, allow_inf_nan=False)
    """Seconds that the model may take for one reply."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if bool(self.model_url) != bool(self.model):
            raise ValueError("`model_url` and `model` belong together: give both or none")
        if "" in self.call_ends:
            raise ValueError("`call_ends`: no string may be empty")
        if self.model_url and not self.model_url.startswith(("http://", "https://")):
            raise ValueError("`model_url`: write an address such as http://127.0.0.1:8000/v1")
        return self

    def tool_set(self) -> ToolSet:
        """Loads the tools that the setting `tools` names. Raises UsageError if a tool does not exist or
        cannot be used, and ConfigError if a tool's limits do not suit `session_seconds` or `max_sessions`."""
        tools = ToolSet(load_named(self.tools))
        if tools.box is not None and tools.box.limits.seconds < self.session_seconds:
            raise ConfigError(
                f"{self.session_seconds:g} s are more than the {tools.box.limits.seconds:g} s of a box",
                where="--session-seconds",
                remedy="give a lower number, or `box.limits.seconds` of the tool a higher one",
            )
        for tool in tools.tools.values():
            # Further trajectories would wait for a place as long as the earlier ones are open.
            limit = tool.state if isinstance(tool.state, ResourcePool) else tool.episodes
            if limit is not None and limit.size < self.max_sessions:
                setting = "`pool_size`" if tool.episodes else "ResourcePool's size"
                raise ConfigError(
                    f"{self.max_sessions} are more than the {limit.size} states that `{tool.name}` "
                    "may have at once",
                    where="--max-sessions",
                    remedy=f"give a lower number, or the tool's {setting} a higher value",
                )
        return tools

    def action_format(self, tools: ToolSet) -> ActionFormat:
        """Returns the action format for chats (the syntax of tool calls), prepared for these tools. Raises
        ConfigError if the format cannot express tool calls."""
        return calling(self.format, tools)
