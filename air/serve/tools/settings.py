"""The settings of `air serve tools`."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from air.actions import ActionFormat
from air.errors import ConfigError
from air.serve.settings import ListenConfig
from air.serve.tool_names import calling, load_named
from air.tools import ToolSet

KEY_ENV = "AIR_MODEL_KEY"
"""The environment variable with the API key that is sent to the model's endpoint."""


class ToolsConfig(ListenConfig):
    """Settings of a server of tools."""

    tools: tuple[str, ...] = Field(min_length=1)
    """The tools: names, functions as `FILE.py:NAME` or `MODULE:NAME`, or TOML files with the key `tools`."""
    public: tuple[str, ...] = ()
    """The names of those `extra_fields` of a request that tools may read, such as the position of a game."""
    max_sessions: int = Field(32, ge=1)
    """The largest number of trajectories and chats that are open at once. Each has a box if the tools need
    one."""
    idle_seconds: float = Field(900.0, gt=0, allow_inf_nan=False)
    """Seconds without a request after which a trajectory ends."""
    session_seconds: float = Field(3600.0, gt=0, allow_inf_nan=False)
    """Seconds after which a trajectory ends, however often it is used. A running call is not interrupted."""
    queue_seconds: float = Field(60.0, gt=0, allow_inf_nan=False)
    """Seconds that a request waits for room for its new trajectories. Then it is refused."""
    max_queued: int = Field(1000, ge=0)
    """The largest number of requests that wait for room. Further requests are refused at once."""
    max_actions: int = Field(1024, ge=1)
    """The largest number of actions in one request."""
    model_url: str = ""
    """The address of a server with OpenAI's chat completions, for chats. Empty: there are no chats."""
    model: str = ""
    """The name of the model at `model_url`. Clients of this server use the same name."""
    format: str = "tool_calls"
    """The action format of chats: how the model calls tools."""
    max_turns: int = Field(8, ge=1, le=1000)
    """The largest number of the model's replies in one chat."""
    model_seconds: float = Field(600.0, gt=0, allow_inf_nan=False)
    """Seconds that one reply of the model may take."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if bool(self.model_url) != bool(self.model):
            raise ValueError("`model_url` and `model` belong together: give both or none")
        if self.model_url and not self.model_url.startswith(("http://", "https://")):
            raise ValueError("`model_url`: write an address such as http://127.0.0.1:8000/v1")
        return self

    def tool_set(self) -> ToolSet:
        """Loads the tools. Raises UsageError if one does not exist or cannot be used."""
        tools = ToolSet(load_named(self.tools))
        if tools.box is not None and tools.box.limits.seconds < self.session_seconds:
            raise ConfigError(
                f"{self.session_seconds:g} s are more than the {tools.box.limits.seconds:g} s of a box",
                where="--session-seconds",
                remedy="give a lower number, or `box.limits.seconds` of the tool a higher one",
            )
        for tool in tools.tools.values():
            # Further trajectories would wait for a place as long as the earlier ones are open.
            if tool.episodes is not None and tool.episodes.size < self.max_sessions:
                raise ConfigError(
                    f"{self.max_sessions} are more than the {tool.episodes.size} states that `{tool.name}` "
                    "may have at once",
                    where="--max-sessions",
                    remedy="give a lower number, or the tool's `pool_size` a higher one",
                )
        return tools

    def action_format(self, tools: ToolSet) -> ActionFormat:
        """Returns the action format of chats. Raises ConfigError if it cannot call the tools."""
        return calling(self.format, tools)
