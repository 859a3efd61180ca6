"""The tools of the action format `mlgym` (commands after the project MLGym: for files, searches, notes and
papers), for one agent in one box, the isolated place in which it works.

The tools run outside the box and act on it through the methods of `Box`. Their state lasts for the episode:
the open file, the lines in view, the working directory and the agent's notes. A mistake of the agent is
reported in an observation.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from air.actions.base import Standing, ToolCall
from air.actions.mlgym import OPTIONAL, SIGNATURES
from air.sandbox.contract.box import Box
from air.sandbox.contract.shell import Shell
from air.tools.base import ToolError
from air.tools.workbench.box_files import BoxFiles, TextFile
from air.tools.workbench.file_window import around, bounded, clamp, numbered, one_line, whole_number
from air.tools.workbench.numbered_lines import NumberedLines
from air.worlds.base import Observation, Refusal
from air.worlds.research import lint, search
from air.worlds.research.memory import Memory
from air.worlds.research.papers import SEARCH_URL, Library, offered

MARGIN = 5
"""The number of lines that the observation after an edit shows above and below the edited lines."""


@dataclass(frozen=True)
class ToolSettings:
    """The settings of the agent's tools in one episode."""

    window: int = 1000
    """Number of lines of the open file that are in view at once."""
    overlap: int = 2
    """Number of lines that remain in view when the agent scrolls; fewer than `window`."""
    memory: bool = False
    """Whether the agent can write and read notes (the tools `memory_write` and `memory_read`)."""
    hosts: tuple[str, ...] = ()
    """The names of the hosts that the agent's box (the isolated place in which it works) may access. Empty:
    the tools for papers are not available."""
    search_url: str = SEARCH_URL
    """The URL of the search service for papers."""

    @property
    def offered(self) -> tuple[str, ...]:
        """The names of the optional tools (those for notes and papers) that the agent may use."""
        memory = ("memory_write", "memory_read") if self.memory else ()
        return (*memory, *offered(self.hosts, self.search_url))


@dataclass
class View:
    """The file that the agent has open, and the part of it that is in view: the absolute path in the box, the
    first line in view (from 1), and the number of the file's lines when the agent last saw them."""

    path: str
    first: int = 1
    total: int = 0


class Tools:
    """The agent's tools and shell in one episode, which act on `box`, the isolated place in which the agent
    works. The methods must not be called concurrently."""

    def __init__(self, box: Box, settings: ToolSettings | None = None) -> None:
        self.settings = settings or ToolSettings()
        self._box = box
        self.shell = Shell(box)
        self._files = BoxFiles(box)
        self._memory = Memory()
        self._library = Library(box, self.settings.hosts, self.settings.search_url)
        self._view: View | None = None
        self._table: dict[str, Callable[[ToolCall], Awaitable[str]]] = {
            "open": self._open,
            "goto": self._goto,
            "scroll_down": self._scroll,
            "scroll_up": self._scroll,
            "create": self._create,
            "edit": self._edit,
            "insert": self._insert,
            "search_dir": self._search_dir,
            "search_file": self._search_file,
            "find_file": self._find_file,
            "memory_write": self._remember,
            "memory_read": self._remember,
            "literature_search": self._look_up,
            "parse_pdf_url": self._look_up,
        }

    def standing(self, left: int | None) -> Standing:
        """Returns the agent's situation between two actions, which the action format shows to the agent: the
        number of remaining turns (given as `left`; None: not limited), the working directory, and the path of
        the open file with the numbers of the lines in view."""
        open_file = ""
        if (view := self._view) is not None:
            last = min(view.first + self.settings.window - 1, view.total)
            open_file = (
                f"{one_line(view.path)}, lines {min(view.first, last)}-{last} of {view.total}"
            )
        return Standing(left=left, cwd=one_line(self.shell.cwd), open_file=open_file)

    def copied_to(self, box: Box) -> Tools:
        """Returns a copy of these tools for another box, with the same working directory, open file and
        notes.

        The workspace of `box` (the folder in which the agent works) must be a copy of the workspace of the
        present box.
        """
        other = Tools(box, self.settings)
        other.shell = self.shell.carried(box)
        other._memory = copy.deepcopy(self._memory)
        if (view := self._view) is not None:
            path = view.path.replace(self._box.workspace, box.workspace)
            other._view = replace(view, path=path)
        return other

    async def call(self, call: ToolCall) -> Observation:
        """Carries out a tool call. Returns its result, or the reason why the call is refused, as an
        observation.

        Raises BoxDiedError if the box has ended, and InfrastructureError if the linter program fails.
        """
        try:
            signature = SIGNATURES[call.name]
            if not signature.least <= len(call.args) <= signature.most:
                raise Refusal(f"Usage:\n{signature.usage}")
            if call.name in OPTIONAL and call.name not in self.settings.offered:
                raise Refusal(f"{call.name} is not on offer: {_why_not(call.name)}.")
            text = await self._table[call.name](call)
        except ToolError as refusal:
            text = str(refusal)
        shown, cut = bounded(text)
        return Observation(text=shown, truncated=cut)

    # The view

    async def _open(self, call: ToolCall) -> str:
        path = await self._files.resolve(call.args[0], self.shell.cwd)
        file = await self._files.read(path)
        line = _line(call.args[1], file) if len(call.args) > 1 else 1
        self._view = View(path)
        return await self._show(self._view, file, line)

    async def _goto(self, call: ToolCall) -> str:
        view, file = await self._opened()
        return await self._show(view, file, _line(call.args[0], file))

    async def _scroll(self, call: ToolCall) -> str:
        view, file = await self._opened()
        window, total = self.settings.window, len(file.lines)
        step = max(1, window - self.settings.overlap)
        first = view.first + step if call.name == "scroll_down" else view.first - step
        first = clamp(first, total, window)
        if first == clamp(view.first, total, window):
            end = "end" if call.name == "scroll_down" else "beginning"
            raise Refusal(f"The {end} of {view.path} is in view already.")
        return await self._shown(view, file, first)

    async def _show(self, view: View, file: TextFile, line: int) -> str:
        first = around(line, len(file.lines), self.settings.window)
        return await self._shown(view, file, first)

    async def _shown(self, view: View, file: TextFile, first: int) -> str:
        """Moves the view of the open file so that it starts at line `first`. Returns a text with the lines in
        view."""
        total = len(file.lines)
        view.first, view.total = first, total
        if not total:
            return f"{view.path} is empty."
        last = min(first + self.settings.window - 1, total)
        parts = [f"[{first - 1} lines above]"] if first > 1 else []
        parts.append(await asyncio.to_thread(_part, file.lines, first, last))
        parts += [f"[{total - last} lines below]"] if last < total else []
        return "\n".join(parts)

    async def _opened(self) -> tuple[View, TextFile]:
        if self._view is None:
            raise Refusal("No file is open. Open one first.")
        return self._view, await self._files.read(self._view.path)

    # Changes

    async def _create(self, call: ToolCall) -> str:
        path = await self._files.resolve(call.args[0], self.shell.cwd)
        if await self._files.mode(path) is not None:
            raise Refusal(f"{path} exists. Open it to edit it.")
        await self._files.write(path, "")
        self._view = View(path)
        return f"Created {path}. It is empty."

    async def _edit(self, call: ToolCall) -> str:
        view, file = await self._opened()
        first, last = _range(call.args[0], file)
        return await self._replace(view, file, first, last, call.body or ())

    async def _insert(self, call: ToolCall) -> str:
        view, file = await self._opened()
        after = 0 if call.args[0] == "0" else _line(call.args[0], file)
        if not call.body:
            raise Refusal("There is nothing to insert.")
        return await self._replace(view, file, after + 1, after, call.body)

    async def _replace(
        self, view: View, file: TextFile, first: int, last: int, body: tuple[str, ...]
    ) -> str:
        """Replaces the lines `first` to `last` of a file by `body`. Returns a text that shows the changed
        lines and the remaining lint errors, which the edit did not add, or the reason why the file was not
        linted.

        Lines are counted from 1, and `last` is included. If `last` < `first`, inserts `body` before line
        `first`. Raises Refusal if the edit would add lint errors to a `.py` file or the file is not UTF-8
        text, and ToolError if the file cannot be written.
        """
        if not file.exact:
            raise Refusal(f"{file.path} is not UTF-8 text: it can be shown, but not edited.")
        old = file.lines
        new = await asyncio.to_thread(old.replaced, first, last, body)
        end = first + len(body) - 1
        verdict = lint.LintResult()
        if file.path.endswith(".py"):
            verdict = await lint.lint_edit(old.text, new.text)
        if verdict.new:
            raise Refusal(
                f"Not edited. It would bring:\n{verdict.new}\n"
                f"With the edit:\n{await _near(new, first, end)}\n"
                f"As it is:\n{await _near(old, first, last)}"
            )
        await self._files.write(file.path, new.text)
        view.first, view.total = around(first, len(new), self.settings.window), len(new)
        parts = [f"Edited {file.path}, {len(new)} lines now.", await _near(new, first, end)]
        if verdict.rest:
            parts.append(f"Errors in it, not brought by this edit:\n{verdict.rest}")
        if verdict.given_up:
            parts.append(f"[not linted: {verdict.given_up}]")
        return "\n".join(part for part in parts if part)

    # Searches

    async def _search_dir(self, call: ToolCall) -> str:
        folder = await self._folder(call)
        return await search.in_folder(self._files, _wanted(call), folder)

    async def _search_file(self, call: ToolCall) -> str:
        text = _wanted(call)
        if len(call.args) == 1:
            _, file = await self._opened()
        else:
            file = await self._files.read(await self._files.resolve(call.args[1], self.shell.cwd))
        return await asyncio.to_thread(search.in_file, file, text)

    async def _find_file(self, call: ToolCall) -> str:
        folder = await self._folder(call)
        return await search.by_name(self._files, _wanted(call), folder)

    async def _folder(self, call: ToolCall) -> str:
        return await self._files.folder(call.args[1] if len(call.args) > 1 else ".", self.shell.cwd)

    # Notes and papers

    async def _remember(self, call: ToolCall) -> str:
        if call.name == "memory_read":
            return await asyncio.to_thread(self._memory.read, call.args[0])
        return f"Noted as {self._memory.write(call.args[0])}."

    async def _look_up(self, call: ToolCall) -> str:
        if call.name == "literature_search":
            return await self._library.search(*call.args)
        return await self._library.pdf(call.args[0])


def _why_not(name: str) -> str:
    return (
        "this run keeps no notes" if name.startswith("memory") else "this task opens no host for it"
    )


def _wanted(call: ToolCall) -> str:
    if not call.args[0]:
        raise Refusal("There is nothing to search for.")
    return call.args[0]


def _line(word: str, file: TextFile) -> int:
    """Parses `word` as a line number of `file`. Raises Refusal if `word` is not a number, or if the file has
    no such line."""
    total = max(1, len(file.lines))
    if (number := whole_number(word)) is None or not 1 <= number <= total:
        raise Refusal(f"{word:.40} is no line of {file.path}, which has {total} lines.")
    return number


def _range(word: str, file: TextFile) -> tuple[int, int]:
    first, colon, last = word.partition(":")
    if not colon:
        raise Refusal(f"Usage:\n{SIGNATURES['edit'].usage}")
    lines = _line(first, file), _line(last, file)
    if lines[0] > lines[1]:
        raise Refusal(f"{word:.40} ends before it begins.")
    return lines


async def _near(lines: NumberedLines, first: int, last: int) -> str:
    return await asyncio.to_thread(_part, lines, max(1, first - MARGIN), last + MARGIN)


def _part(lines: NumberedLines, first: int, last: int) -> str:
    return numbered(lines.between(first, last), first)
