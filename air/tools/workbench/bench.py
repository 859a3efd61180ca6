"""Defines `Workbench`: the object that the tools `bash` and `files` share in one episode. It has a shell, and
the history of edits from which the tool `undo_edit` restores files. The tools take a relative path as
relative to the shell's working directory."""

from __future__ import annotations

import asyncio
import stat

from air.sandbox.contract.shell import Shell
from air.tools.base import Reply, ToolContext, ToolError
from air.tools.workbench.box_files import BoxFiles, TextFile
from air.tools.workbench.file_window import numbered
from air.tools.workbench.numbered_lines import NumberedLines

OUTPUT_BYTES = 16_000
MARGIN = 4
"""The number of lines above and below the edited lines that the model sees after an edit."""
MOST_LINES = 10_000
"""The maximum number of lines of a file that one call shows. It limits memory: a file of 16 MB can have 16
million empty lines, which take gigabytes once they are numbered."""
MOST_UNDO_CHARACTERS = 16_000_000
"""The maximum total size, in characters, of the old file contents that are kept for `undo_edit`. The oldest
contents are dropped first."""


class Workbench:
    """The shell and the editor of one episode, which both act on the episode's box (sandbox)."""

    def __init__(self, context: ToolContext) -> None:
        assert context.box is not None
        self._shell, self._files = Shell(context.box), BoxFiles(context.box)
        self._before: list[tuple[str, str]] = []
        """The history of edits, oldest first: the path of the edited file, and its text before the edit."""

    async def bash(self, command: str, seconds: float) -> Reply:
        """Runs a command in the shell, for at most `seconds` seconds, and returns its output and exit status.
        Raises ToolError if the command is empty or contains a NUL character, and BoxDiedError if the box
        (sandbox) has ended."""
        if not command.strip():
            raise ToolError("The command is empty.")
        if "\0" in command:
            raise ToolError("The command has a NUL character, which no shell can run.")
        result = await self._shell.exec(command, timeout=seconds, max_bytes=OUTPUT_BYTES)
        parts = [result.text.strip("\n")]
        if result.timed_out:
            parts.append(f"[the command exceeded its time limit of {seconds:g} s]")
        elif result.code:
            parts.append(f"[exit {result.code}]")
        text = "\n".join(filter(None, parts)) or "[no output]"
        return Reply(text, "success" if result.ok else "error", {"code": result.code})

    async def view(self, path: str, first: int, last: int | None) -> str:
        """Returns the lines `first` to `last` of a file with their numbers (to the end of the file if `last`
        is None), or the names in a folder. Raises ToolError if `path` cannot be read or the file has no such
        lines."""
        target = await self._files.resolve(path, self._shell.cwd)
        mode = await self._files.mode(target)
        if mode is not None and stat.S_ISDIR(mode):
            result = await self._files.look("ls", "-Ap", "--", ".", at=target)
            return result.text.rstrip("\n") or f"{target} is empty."
        file = await self._files.read(target)
        total = len(file.lines)
        if not total:
            return f"{target} is empty."
        last = total if last is None else min(last, total)
        if not 1 <= first <= last:
            raise ToolError(f"{target} has the lines 1 to {total}; {first} to {last} are none.")
        return await _shown(file.lines, first, last)

    async def create(self, path: str, text: str) -> str:
        """Writes a new file, and returns the observation (the message for the model). Raises ToolError if the
        file exists or cannot be written."""
        target = await self._files.resolve(path, self._shell.cwd)
        if await self._files.mode(target) is not None:
            raise ToolError(f"{target} exists. Use `str_replace` or `insert` to edit it.")
        await self._files.write(target, text)
        return f"Created {target}, {len(NumberedLines(text))} lines."

    async def str_replace(self, path: str, old: str, new: str) -> str:
        """Replaces the text `old` in a file by `new`, and returns the observation (the text for the model),
        which shows the edited lines. Raises ToolError unless the file can be edited and contains `old`
        exactly once."""
        if not old:
            raise ToolError("`old` is empty: there is nothing to replace.")
        file = await self._open(path)
        text = file.lines.text
        count = await asyncio.to_thread(text.count, old)
        if count != 1:
            raise ToolError(f"`old` occurs {count} times in {file.path}; it must occur once.")
        before, _, after = text.partition(old)
        first = before.count("\n") + 1
        return await self._edit(file, before + new + after, first, first + new.count("\n"))

    async def insert(self, path: str, after: int, text: str) -> str:
        """Inserts `text` after the line with the number `after` (0: at the beginning of the file), and
        returns the observation (the text for the model), which shows the inserted lines. Raises ToolError if
        there is no such line or the file cannot be edited."""
        file = await self._open(path)
        total = len(file.lines)
        if not 0 <= after <= total:
            raise ToolError(f"{file.path} has {total} lines; there is no line {after}.")
        body = text.removesuffix("\n").split("\n")
        lines = await asyncio.to_thread(file.lines.replaced, after + 1, after, body)
        return await self._edit(file, lines.text, after + 1, after + len(body))

    async def undo_edit(self, path: str) -> str:
        """Gives a file the content that it had before its latest edit, even if something else has changed the
        file since, and returns the observation (the message for the model). Raises ToolError if there is no
        edit to undo."""
        target = await self._files.resolve(path, self._shell.cwd)
        for number in reversed(range(len(self._before))):
            if self._before[number][0] == target:
                await self._files.write(target, self._before[number][1])
                del self._before[number]
                return f"The latest edit of {target} is undone."
        raise ToolError(f"There is no edit of {target} to undo.")

    async def _open(self, path: str) -> TextFile:
        file = await self._files.read(await self._files.resolve(path, self._shell.cwd))
        if not file.exact:
            raise ToolError(f"{file.path} is not UTF-8 text: it can be shown, but not edited.")
        return file

    async def _edit(self, file: TextFile, text: str, first: int, last: int) -> str:
        await self._files.write(file.path, text)
        self._before.append((file.path, file.lines.text))
        while sum(len(one) for _, one in self._before) > MOST_UNDO_CHARACTERS:
            del self._before[0]
        lines = await asyncio.to_thread(NumberedLines, text)
        shown = await _shown(lines, max(1, first - MARGIN), last + MARGIN)
        return f"Edited {file.path}, {len(lines)} lines now.\n{shown}"


async def _shown(lines: NumberedLines, first: int, last: int) -> str:
    """Returns the lines `first` to `last` as text, each with its number. Only the first `MOST_LINES` of them
    are shown; a note at the end says which lines are left out."""
    last = min(last, len(lines))
    end = min(last, first + MOST_LINES - 1)
    text = await asyncio.to_thread(lambda: numbered(lines.between(first, end), first))
    return text if end == last else f"{text}\n[… the lines {end + 1} to {last} are not shown …]"
