"""Finds what each step of an agent changed in its workspace, as a unified diff.

After a step, one `find` in the box lists the regular files with size, times and inode; only files for which
these changed are read again. Links are not followed. Unreadable, large and binary files are only named.
"""

from __future__ import annotations

import asyncio
import difflib
import io
import re
import time
from dataclasses import dataclass, field

from air.errors import BoxFileError
from air.sandbox.contract.box import Box
from air.trajectories import Diff, FileChange

FILE_BYTES = 64_000
"""The largest file, in bytes, whose content is compared. A larger file that changed is only named."""
DIFF_CHARS = 16_000
"""The upper limit on the characters in the diff of one step."""
PART_CHARS = 4_000
"""The upper limit on the characters that one file adds to a step's diff; further lines are left out."""
MOST_LINES = 10_000
"""The most lines of a file that is compared, because the time grows with the square of the number of lines. A
changed file with more lines is only named."""
STEP_LINES = 20_000
"""The most lines that are compared after one step in all changed files together. Each file counts with its
old or its new number of lines, whichever is larger."""
MOST_READ = 100
"""The upper limit on the number of changed files whose content is read after one step."""
MOST_LISTED = 200
"""The upper limit on the number of changed files that the result of one step lists."""
_LIST_BYTES = 4_000_000
_ODD_IN_NAMES = re.compile(r'[\x00-\x1f\x7f"\\]')
_ESCAPED = {c: rf"\{e}" for c, e in zip('\a\b\t\n\v\f\r"\\', 'abtnvfr"\\', strict=True)}
_SECONDS = 20.0
_FIND = ("find", ".", "-xdev", "-type", "f", "-printf", r"%s %T@ %C@ %i %P\0")


@dataclass(frozen=True)
class _File:
    size: int
    stamp: str
    """The file's times and inode as text. If this text has changed, the content may have changed too."""


@dataclass
class Differ:
    """Finds each step's changes in a box's workspace: call `start` once, then `diff` after every step."""

    box: Box
    _index: dict[str, _File] = field(default_factory=dict)
    _texts: dict[str, bytes] = field(default_factory=dict)
    """The latest known content of every file of at most `FILE_BYTES`, by path."""
    _lines_left: int = 0
    """How many lines the current call of `diff` may still compare; it starts at `STEP_LINES`."""

    async def start(self) -> None:
        """Reads the workspace for the first call of `diff`. Raises BoxDiedError if the box is gone."""
        files = await self._list()
        if isinstance(files, str):
            return  # the first `diff` reports that the workspace cannot be listed
        self._index = files
        for path in list(files)[:MOST_READ]:
            if (data := await self._read(path, files[path])) is not None:
                self._texts[path] = data

    async def diff(self) -> Diff:
        """Returns the workspace's changes since the last call of `diff` or `start`.
        Raises BoxDiedError if the box is gone."""
        began, self._lines_left = time.monotonic(), STEP_LINES
        files = await self._list()
        if isinstance(files, str):
            return Diff(problem=files, seconds=round(time.monotonic() - began, 4))
        touched = sorted(
            path for path in {*files, *self._index} if files.get(path) != self._index.get(path)
        )
        parts: list[str] = []
        changes: list[FileChange] = []
        for number, path in enumerate(touched):
            change, text = await self._change(path, files.get(path), read=number < MOST_READ)
            if change is not None:
                changes.append(change)
                parts.append(text)
        self._index = files
        whole = "".join(parts)
        text = _bounded(whole, DIFF_CHARS)
        left_out = len(text) < len(whole) or len(changes) > MOST_LISTED
        return Diff(
            text=text,
            files=tuple(changes[:MOST_LISTED]),
            cut=left_out or any(change.note == "cut" for change in changes),
            seconds=round(time.monotonic() - began, 4),
        )

    async def _change(
        self, path: str, now: _File | None, *, read: bool
    ) -> tuple[FileChange | None, str]:
        """Compares a file with its old content; returns a summary and the diff (None and "" if unchanged).
        `now` is None if the file was deleted. If `read` is false, the file is only named."""
        was, old = self._index.get(path), self._texts.pop(path, None)
        new = await self._read(path, now) if now is not None and read else None
        if now is not None and new is not None:
            self._texts[path] = new
        if was is not None and now is not None and old is not None and old == new:
            return None, ""
        status = "removed" if now is None else "added" if was is None else "changed"
        size = 0 if now is None else now.size
        known = (was is None or old is not None) and (now is None or new is not None)
        if not known:
            large = max(size, was.size if was else 0) > FILE_BYTES
            note = "too large" if large else "content not known"
            return FileChange(path=path, status=status, bytes=size, note=note), ""
        before, after = _text(old or b""), _text(new or b"")
        if before is None or after is None:
            return FileChange(path=path, status=status, bytes=size, note="binary"), ""
        most = max(before.count("\n"), after.count("\n"))
        compared = most if before and after else 0  # a new or removed file costs no comparison
        if most > MOST_LINES or compared > self._lines_left:
            return FileChange(path=path, status=status, bytes=size, note="too many lines"), ""
        self._lines_left -= compared
        lines = await asyncio.to_thread(_unified, path, before, after, status)
        whole = "".join(lines)
        text = _bounded(whole, PART_CHARS)
        change = FileChange(
            path=path,
            status=status,
            bytes=size,
            added=sum(line.startswith("+") for line in lines[2:]),
            removed=sum(line.startswith("-") for line in lines[2:]),
            note="cut" if len(text) < len(whole) else "",
        )
        return change, text

    async def _list(self) -> dict[str, _File] | str:
        """Returns the workspace's regular files by path, or an error message if they cannot be listed."""
        result = await self.box.exec(_FIND, timeout=_SECONDS, max_bytes=_LIST_BYTES)
        if result.timed_out or result.truncated:
            return "the workspace holds too many files"
        if not result.began or (not result.ok and not result.stdout):
            return f"find: {result.text.strip()[-200:] or f'exit {result.code}'}"
        files = {}
        for entry in result.stdout.decode("utf-8", "replace").split("\0"):
            size, _, rest = entry.partition(" ")
            stamp = rest.split(" ", 3)
            if len(stamp) == 4 and size.isdigit():
                files[stamp[3]] = _File(int(size), " ".join(stamp[:3]))
        return files

    async def _read(self, path: str, file: _File) -> bytes | None:
        if file.size > FILE_BYTES:
            return None
        try:
            return await self.box.read(path, max_bytes=FILE_BYTES)
        except BoxFileError:
            return None  # the file has been removed, enlarged or replaced by a link since it was listed


def _text(data: bytes) -> str | None:
    if b"\0" in data:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _bounded(text: str, most: int) -> str:
    """Returns as many whole lines from the start of `text` as fit in `most` characters."""
    return text if len(text) <= most else text[: text.rfind("\n", 0, most) + 1]


def _quoted(name: str) -> str:
    """Returns a file name as git writes it in a diff (with git's option `core.quotePath` off): quoted, with C
    escapes, if the name has a control character, a quote or a backslash."""
    text = _ODD_IN_NAMES.sub(lambda match: _ESCAPED.get(match[0], f"\\{ord(match[0]):03o}"), name)
    return name if text == name else f'"{text}"'


def _unified(path: str, before: str, after: str, status: str) -> list[str]:
    # Lines end only at a newline; `str.splitlines` would also split at other characters.
    old, new = (list(io.StringIO(text, newline="\n")) for text in (before, after))
    names = (
        "/dev/null" if status == "added" else _quoted(f"a/{path}"),
        "/dev/null" if status == "removed" else _quoted(f"b/{path}"),
    )
    lines = []
    for line in difflib.unified_diff(old, new, *names):
        lines.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return lines
