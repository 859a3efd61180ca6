"""A real MCP server with a few tools, made with the package's own server side.

`python notes_server.py` speaks over standard input and output, `… http PORT` and `… sse PORT` over HTTP.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from mcp.server.mcpserver import Image, MCPServer

NOTES: list[str] = []


def server() -> MCPServer:
    notes = MCPServer("notes", log_level="ERROR")

    @notes.tool()
    def add(text: str, times: int = 1) -> str:
        """Adds a note."""
        NOTES.extend([text] * times)
        return f"{len(NOTES)} notes: {', '.join(NOTES)}"

    @notes.tool()
    def fail(reason: str) -> str:
        """Fails, as the tool of a server may."""
        raise ValueError(reason)

    @notes.tool()
    def picture() -> Image:
        """Draws a picture."""
        return Image(data=b"\x89PNG" + bytes(96), format="png")

    @notes.tool()
    def numbers() -> list[int]:
        """Returns what is no text."""
        return [1, 2]

    @notes.tool()
    def wait(seconds: float) -> str:
        """Takes its time."""
        time.sleep(seconds)
        return "done"

    @notes.tool()
    def end(touch: str = "") -> str:
        """Ends the server at once."""
        if touch:
            Path(touch).touch()
        import os

        os._exit(3)

    return notes


if __name__ == "__main__":
    how, port = [*sys.argv[1:], "stdio", "0"][:2]
    if how == "stdio":
        server().run("stdio")
    elif how == "http":
        server().run("streamable-http", port=int(port))
    else:
        server().run("sse", port=int(port))
