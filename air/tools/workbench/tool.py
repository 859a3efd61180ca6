"""Defines tools that a model calls to work in its box (sandbox), and their settings: the tool `bash`, and the
five tools for viewing and editing files that a run file selects together by the name `files`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from air.sandbox.contract.box import BoxSpec
from air.tools.base import Reply, Tool, tool
from air.tools.load import ToolSettings
from air.tools.workbench.bench import Workbench

MAX_LENGTH = 16_000
"""The default maximum length, in characters, of what the tool `view` shows to the model."""
GRACE = 45.0
"""The number of seconds by which the time limit of a call exceeds the time limit of its command. The box
(sandbox) enforces the command's limit. Air's own process enforces the call's limit, in case the box fails to
stop the command."""


class BashSettings(ToolSettings):
    """The settings of the tool `bash`."""

    seconds: float = Field(60.0, gt=0, lt=86_400)
    """The time limit of a command in seconds. After it, the command and every process that it started are
    killed."""
    box: BoxSpec = BoxSpec()
    """The specification of the episode's box (sandbox): image, limits, hosts. All tools of an episode must
    specify the same box."""

    def tools(self, folder: Path) -> Sequence[Tool]:
        """Returns the tool `bash` with these settings, as a list. `folder` is not used, because the settings
        contain no paths; the base class demands it."""

        @tool(state=Workbench, box=self.box, replays=False)
        async def bash(bench: Workbench, command: str) -> Reply:
            """Runs a bash command. The working directory and exported variables stay for later calls. The
            command has no standard input.

            Args:
                command: the command
            """
            return await bench.bash(command, self.seconds)

        return [bash]

    def applied(self, tool: Tool) -> Tool:
        """Returns a copy of `tool` with the limits that are set here. The setting `seconds` limits the
        running time of a command; the box (sandbox) enforces it. The call as a whole gets a longer time
        limit, which matters only if the box fails to do so."""
        return dataclasses.replace(super().applied(tool), seconds=self.seconds + GRACE)


class FilesSettings(ToolSettings):
    """The settings of the tools `view`, `create`, `str_replace`, `insert` and `undo_edit`."""

    box: BoxSpec = BoxSpec()
    """The specification of the episode's box (sandbox): image, limits, hosts. All tools of an episode must
    specify the same box."""

    def tools(self, folder: Path) -> Sequence[Tool]:
        """Returns the tools `view`, `create`, `str_replace`, `insert` and `undo_edit` with these settings.
        `folder` is not used, because the settings contain no paths; the base class demands it."""
        return [dataclasses.replace(one, box=self.box) for one in _FILES]


@tool(state=Workbench, replays=False, max_length=MAX_LENGTH)
async def view(bench: Workbench, path: str, first: int = 1, last: int | None = None) -> str:
    """Shows lines of a text file with their numbers, or the names in a folder.

    Args:
        path: the file or folder, relative to the shell's working directory
        first: the first line, from 1
        last: the last line; without it, the end of the file
    """
    return await bench.view(path, first, last)


@tool(state=Workbench, replays=False)
async def create(bench: Workbench, path: str, text: str) -> str:
    """Creates a text file. An existing file is not replaced.

    Args:
        path: the new file, relative to the shell's working directory
        text: its content
    """
    return await bench.create(path, text)


@tool(state=Workbench, replays=False)
async def str_replace(bench: Workbench, path: str, old: str, new: str) -> str:
    """Replaces a text in a file. The text must occur exactly once.

    Args:
        path: the file, relative to the shell's working directory
        old: the text to replace, with its spaces and line ends
        new: the text in its place
    """
    return await bench.str_replace(path, old, new)


@tool(state=Workbench, replays=False)
async def insert(bench: Workbench, path: str, after: int, text: str) -> str:
    """Inserts lines into a file.

    Args:
        path: the file, relative to the shell's working directory
        after: the number of the line behind which they go; 0 is the beginning
        text: the lines
    """
    return await bench.insert(path, after, text)


@tool(state=Workbench, replays=False)
async def undo_edit(bench: Workbench, path: str) -> str:
    """Takes back the latest edit of a file by `str_replace` or `insert`.

    Args:
        path: the file, relative to the shell's working directory
    """
    return await bench.undo_edit(path)


_FILES = (view, create, str_replace, insert, undo_edit)
