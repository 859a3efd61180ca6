"""Defines `McpServer`: the settings in a run file for one server of the Model Context Protocol (MCP) whose
tools are offered to the agent. Examples:

tools = [{name = "mcp", url = "https://mcp.example.org/mcp", only = ["search"]}]
tools = [{name = "mcp", command = ["notes-server", "--quiet"], box = {image = "notes"}}]
"""

from __future__ import annotations

import re
from typing import Literal, Self
from urllib.parse import SplitResult, urlsplit

from pydantic import Field, model_validator

from air.sandbox.contract import network_rules
from air.sandbox.contract.box import BoxSpec
from air.tools.load import ToolSettings

Transport = Literal["stdio", "streamable-http", "sse"]
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


class McpServer(ToolSettings):
    """One server of the Model Context Protocol (MCP) whose tools the agent gets: a program in the episode's
    box, a sandbox (`command`), or a remote server (`url`)."""

    server: str = Field("mcp", pattern=r"^[A-Za-z0-9_-]{1,32}$")
    """A short name for the server, used in messages and as a prefix for tools whose names are already
    taken."""
    command: tuple[str, ...] = ()
    """The program and its arguments. The program runs in the box (sandbox) and communicates over standard
    input and output."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the program."""
    cwd: str = ""
    """The program's working directory in the box (sandbox). Empty: the box's workspace."""
    box: BoxSpec = BoxSpec()
    """The specification of the box (sandbox) in which the program runs. All tools of an episode must specify
    the same box."""
    url: str = ""
    """The URL of a remote server. The tools connect only to the host and the port of this URL."""
    transport: Transport | None = None
    """The MCP transport. None: `stdio` with a `command`, `streamable-http` with a `url`."""
    headers: dict[str, str] = Field(default_factory=dict)
    """HTTP headers of each request to `url`, such as `Authorization`."""
    private: bool = False
    """Whether the host of `url` may have an IP address that is not public, such as a loopback address."""
    only: tuple[str, ...] | None = None
    """The names, as the server lists them, of the tools that are offered to the agent. None: all tools."""
    start_seconds: float = Field(30.0, gt=0, le=600)
    """The time limit, in seconds, for starting or reaching the server. The request for the server's tool list
    has a separate limit of the same length."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if bool(self.command) == bool(self.url):
            raise ValueError("give either `command` or `url`")
        if (self.transport or self._default) == "stdio":
            if self.url:
                raise ValueError('transport = "stdio" needs `command`, not `url`')
            if self.headers or self.private:
                raise ValueError("`headers` and `private` are for a `url`")
            return self
        if self.command:
            raise ValueError(f"transport = {self.transport!r} needs `url`, not `command`")
        if self.env or self.cwd or self.box != BoxSpec():
            raise ValueError("`env`, `cwd` and `box` are for a `command`")
        self._check_url()
        for name, value in self.headers.items():
            if not _TOKEN.fullmatch(name) or not value.isprintable() or not value.isascii():
                raise ValueError(f"headers: {name!r:.40} cannot be sent")
        return self

    def _check_url(self) -> None:
        parts = self.parts
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise ValueError(f"url: {self.url!r} must be http://HOST/… or https://HOST/…")
        network_rules.rule(self.rule)

    @property
    def _default(self) -> Transport:
        return "stdio" if self.command else "streamable-http"

    @property
    def kind(self) -> Transport:
        """The MCP transport: the setting `transport`, or its default if it is None."""
        return self.transport or self._default

    @property
    def parts(self) -> SplitResult:
        """The parsed `url`. Raises ValueError if its port is malformed."""
        parts = urlsplit(self.url)
        _ = parts.port
        return parts

    @property
    def rule(self) -> str:
        """The network rule, such as `mcp.example.org:443`, that allows exactly the host and the port of
        `url`, in the syntax of `BoxSpec.network`."""
        parts = self.parts
        port = parts.port or (443 if parts.scheme == "https" else 80)
        return f"{parts.hostname}:{port}{' private' if self.private else ''}"
