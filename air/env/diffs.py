"""Finds the changes that each turn of an agent made in the files of its workspace, as a unified diff. The
record of an episode contains these diffs.

After a turn, one `find` command in the agent's box (container) lists the regular files with size, times and
inode. Only files for which these have changed are read again. Symbolic links are not followed. Unreadable,
large and binary files are listed without a diff.
"""

from __future__ import annotations

import asyncio
import difflib
import io
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from air.errors import BoxFileError
from air.sandbox.contract.box import Box
from air.trajectories import Diff, FileChange

FILE_BYTES = 64_000
"""The maximum size in bytes of a file that gets a diff. Larger changed files are only listed."""
DIFF_CHARS = 16_000
"""The maximum number of characters in the diff of one turn."""
PART_CHARS = 4_000
"""The maximum number of characters that one file adds to the diff of a turn; its further lines are left
out."""
MOST_LINES = 10_000
"""The maximum number of lines of a file that gets a diff. Changed files with more lines are only listed."""
COMPARED_LINES = 2_000
"""The maximum number of lines of one file that are compared. The time of a comparison grows with the square
of the number of lines. Lines at the start and at the end of the file that did not change in the turn do not
count. A changed file with more lines is only listed, without a diff."""
TURN_LINES = 4_000
"""The maximum number of lines that are compared after one turn, in all changed files together. For each file,
the larger of its old and new number of lines counts, without the unchanged lines at its start and end."""
MOST_READ = 100
"""The maximum number of changed files whose content is read after one turn."""
MOST_LISTED = 200
"""The maximum number of changed files that are listed for one turn."""
_LIST_BYTES = 4_000_000
_ODD_IN_NAMES = re.compile(r'[\x00-\x1f\x7f"\\]')
_ESCAPED = {c: rf"\{e}" for c, e in zip('\a\b\t\n\v\f\r"\\', 'abtnvfr"\\', strict=True)}
_LINE_NUMBER = re.compile(r"([-+])(\d+)")
_CONTEXT = 3
"""The number of unchanged lines around each change in a diff."""
_SECONDS = 20.0
_FIND = ("find", ".", "-xdev", "-type", "f", "-printf", r"%s %T@ %C@ %i %P\0")


@dataclass(frozen=True)
class _File:
    size: int
    stamp: str
    """The file's times (of modification and of change) and its inode as text. While the text stays the same,
    the content is assumed to be unchanged and is not read."""


@dataclass
class Differ:
    """Finds the changes that each turn made in the workspace of a box, the agent's container. Call `start`
    once, then `diff` after every turn."""

    box: Box
    _index: dict[str, _File] = field(default_factory=dict)
    _texts: dict[str, bytes] = field(default_factory=dict)
    """The latest known content of every file of at most `FILE_BYTES`, by path."""
    _lines_left: int = 0
    """The number of lines that the running call of `diff` may still compare. It starts at `TURN_LINES`."""

    async def start(self) -> None:
        """Reads the workspace's files, with which the first call of `diff` compares. Raises BoxDiedError if
        the box is gone."""
        files = await self._list()
        if isinstance(files, str):
            return  # the first `diff` reports that the workspace cannot be listed
        self._index = files
        for path in list(files)[:MOST_READ]:
            if (data := await self._read(path, files[path])) is not None:
                self._texts[path] = data

    async def diff(self) -> Diff:
        """Returns the changes in the workspace since the last call of `diff` or `start`: a summary for each
        changed file, and the text of a unified diff. Raises BoxDiedError if the box is gone."""
        began, self._lines_left = time.monotonic(), TURN_LINES
        files = await self._list()
        if isinstance(files, str):
            return Diff(problem=files, seconds=round(time.monotonic() - began, 4))
        touched = await asyncio.to_thread(_touched, self._index, files)
        parts: list[str] = []
        changes: list[FileChange] = []
        for number, path in enumerate(touched):
            if len(changes) > MOST_LISTED:  # the contents of further files are forgotten
                self._texts.pop(path, None)
                continue
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
        """Compares the file at `path`, relative to the workspace, with its old content. Returns a summary of
        the change and the diff's text, or None and "" if nothing changed. `now` describes the present file
        (None if it was deleted). If `read` is false, there is no diff, because the content is not read."""
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
        versions = _FileVersions.of(before, after)
        if versions.most > MOST_LINES or versions.compared > min(COMPARED_LINES, self._lines_left):
            return FileChange(path=path, status=status, bytes=size, note="too many lines"), ""
        self._lines_left -= versions.compared
        return await asyncio.to_thread(_summary, path, versions, status, size)

    async def _list(self) -> dict[str, _File] | str:
        """Returns the regular files in the workspace by path, or an error message if they cannot be
        listed."""
        result = await self.box.exec(_FIND, timeout=_SECONDS, max_bytes=_LIST_BYTES)
        if result.timed_out or result.truncated:
            return "the workspace holds too many files"
        if not result.began or (not result.ok and not result.stdout):
            return f"find: {result.text.strip()[-200:] or f'exit {result.code}'}"
        return await asyncio.to_thread(_listed, result.stdout)

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
    """Returns the start of `text`: as many whole lines as fit into `most` characters."""
    return text if len(text) <= most else text[: text.rfind("\n", 0, most) + 1]


def _quoted(name: str) -> str:
    """Returns a file name as git writes it in a diff (with git's option `core.quotePath` off): in quotes and
    with C escapes if it contains a control character, a quote or a backslash."""
    text = _ODD_IN_NAMES.sub(lambda match: _ESCAPED.get(match[0], f"\\{ord(match[0]):03o}"), name)
    return name if text == name else f'"{text}"'


@dataclass(frozen=True)
class _FileVersions:
    """The lines of one file before and after a turn."""

    old: list[str]
    new: list[str]
    start: int
    """The number of equal lines at the start of the old and the new content."""
    end: int
    """The number of equal lines at the end of both contents. Lines that `start` counts are not counted
    again."""

    @classmethod
    def of(cls, before: str, after: str) -> _FileVersions:
        """Returns the versions `before` and `after` of one file's content, split into lines. Lines end only
        at newlines; `str.splitlines` would also split at other characters."""
        old, new = (list(io.StringIO(text, newline="\n")) for text in (before, after))
        most = min(len(old), len(new))
        start = next((n for n in range(most) if old[n] != new[n]), most)
        most -= start
        end = next((n for n in range(most) if old[-1 - n] != new[-1 - n]), most)
        return cls(old, new, start, end)

    @property
    def most(self) -> int:
        return max(len(self.old), len(self.new))

    @property
    def compared(self) -> int:
        """The number of lines that must be compared line by line to find the differences; 0 if lines were
        only added or only removed."""
        old, new = (len(lines) - self.start - self.end for lines in (self.old, self.new))
        return max(old, new) if old and new else 0  # only added, or only removed

    def unified(self, old_name: str, new_name: str) -> Iterator[str]:
        """Yields the lines of the unified diff of the two versions. `old_name` and `new_name` are the file
        names in the diff's heading."""
        skipped, left_out = max(0, self.start - _CONTEXT), max(0, self.end - _CONTEXT)
        old, new = (lines[skipped : len(lines) - left_out] for lines in (self.old, self.new))
        for line in difflib.unified_diff(old, new, old_name, new_name, n=_CONTEXT):
            if line.startswith("@@"):  # other lines start with a space, + or -
                line = _LINE_NUMBER.sub(lambda at: f"{at[1]}{int(at[2]) + skipped}", line)
            yield line


def _summary(path: str, versions: _FileVersions, status: str, size: int) -> tuple[FileChange, str]:
    """Returns the summary of one file's change, and its diff with at most `PART_CHARS` characters. `versions`
    are the old and the new lines of the file. `status` is `added`, `changed` or `removed`, and `size` is the
    file's present size in bytes."""
    lines = _unified(path, versions, status)
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


def _unified(path: str, versions: _FileVersions, status: str) -> list[str]:
    names = (
        "/dev/null" if status == "added" else _quoted(f"a/{path}"),
        "/dev/null" if status == "removed" else _quoted(f"b/{path}"),
    )
    lines = []
    for line in versions.unified(*names):
        lines.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return lines


def _touched(was: Mapping[str, _File], now: Mapping[str, _File]) -> list[str]:
    """Returns the sorted paths of all files that were added or removed, or whose size or `stamp` changed,
    between the earlier files `was` and the present files `now`."""
    return sorted(path for path in {*was, *now} if now.get(path) != was.get(path))


def _listed(output: bytes) -> dict[str, _File]:
    """Parses the output of the command `_FIND`. Returns the files by path, relative to the workspace."""
    files = {}
    for entry in output.decode("utf-8", "replace").split("\0"):
        size, _, rest = entry.partition(" ")
        stamp = rest.split(" ", 3)
        if len(stamp) == 4 and size.isdigit():
            files[stamp[3]] = _File(int(size), " ".join(stamp[:3]))
    return files
