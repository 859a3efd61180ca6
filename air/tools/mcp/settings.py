"""`McpServer`: what a run file says about one MCP server whose tools the agent gets.

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
    """One MCP server: a program in the episode's box (`command`), or a remote one (`url`)."""

    server: str = Field("mcp", pattern=r"^[A-Za-z0-9_-]{1,32}$")
    """A short name for the server, for messages and for tools whose names clash."""
    command: tuple[str, ...] = ()
    """The program and its arguments. It runs in the box and speaks over its standard input and output."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the program."""
    cwd: str = ""
    """The program's working directory. Empty: the box's workspace."""
    box: BoxSpec = BoxSpec()
    """The box of the program. Tools of one world need equal boxes."""
    url: str = ""
    """The address of a remote server. Naming it opens its host and port for these tools, and nothing else."""
    transport: Transport | None = None
    """How to talk to the server. None: `stdio` with a `command`, `streamable-http` with a `url`."""
    headers: dict[str, str] = Field(default_factory=dict)
    """Headers of each request to `url`, such as `Authorization`."""
    private: bool = False
    """Whether the host of `url` may have an IP address that is not public, such as a loopback address."""
    only: tuple[str, ...] | None = None
    """The server's tools that the agent gets. None: all."""
    start_seconds: float = Field(30.0, gt=0, le=600)
    """The time limit for the server to start, or to be reached, and to list its tools."""

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
        """The transport, with its default."""
        return self.transport or self._default

    @property
    def parts(self) -> SplitResult:
        """The parts of `url`. Raises ValueError if its port is malformed."""
        parts = urlsplit(self.url)
        _ = parts.port
        return parts

    @property
    def rule(self) -> str:
        """The entry of a list of allowed hosts that allows exactly the host and the port of `url`."""
        parts = self.parts
        port = parts.port or (443 if parts.scheme == "https" else 80)
        return f"{parts.hostname}:{port}{' private' if self.private else ''}"
