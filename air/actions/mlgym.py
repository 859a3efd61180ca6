"""The `mlgym` action format: a discussion (the model's thoughts) and exactly one fenced block with exactly
one command.

A command is a tool call (`open "solve.py" 12`), `validate` (grades the work so far), `submit` (also ends the
episode), or a bash script. The tools (`air.worlds.research.tools`) check their own arguments, so a wrong
number of arguments or an invalid value is not a format error. Text after the block is ignored. If the command
contains a line of backticks, the fences around the block must have more backticks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from air.actions import words
from air.actions.base import Action, ActionFormat, Ending, FormatError, Standing, ToolCall

_FENCE = re.compile(r"^ {0,3}(`{3,})([^`]*)$")
_ENDINGS: dict[str, Ending] = {"validate": "validate", "submit": "submit"}


@dataclass(frozen=True)
class Signature:
    """The syntax and meaning of one tool's calls. `usage` is the syntax of a call, such as `goto <line>`;
    `does` explains in the prompt what the tool does."""

    usage: str
    does: str
    least: int = 0
    """The smallest number of arguments after the tool's name in a call."""
    most: int = 0
    """The largest number of arguments after the tool's name in a call."""
    verbatim: bool = False
    """If true, all text after the tool's name is a single argument. If false, the text is split into words,
    and each word is an argument."""

    @property
    def body(self) -> bool:
        """Whether further lines of text must follow the first line of a call, up to the line `end_of_NAME`
        (NAME is the tool's name)."""
        return "\n" in self.usage


SIGNATURES: dict[str, Signature] = {
    "open": Signature('open "<path>" [<line>]', "shows a file, around that line", 1, 2),
    "goto": Signature("goto <line>", "moves the view of the open file", 1, 1),
    "scroll_down": Signature("scroll_down", "moves the view one window down"),
    "scroll_up": Signature("scroll_up", "moves the view one window up"),
    "create": Signature("create <path>", "makes an empty file and opens it", 1, 1),
    "edit": Signature(
        "edit <first>:<last>\n<lines>\nend_of_edit",
        "replaces these lines of the open file, both included",
        1,
        1,
    ),
    "insert": Signature(
        "insert <line>\n<lines>\nend_of_insert", "adds lines after that one (0: at the top)", 1, 1
    ),
    "search_dir": Signature("search_dir <text> [<dir>]", "files that hold the text", 1, 2),
    "search_file": Signature(
        "search_file <text> [<path>]",
        "lines that hold the text, in the open file or that one",
        1,
        2,
    ),
    "find_file": Signature("find_file <name> [<dir>]", "files by name; * and ? match", 1, 2),
    "memory_write": Signature("memory_write <text>", "notes something down", 1, 1, verbatim=True),
    "memory_read": Signature("memory_read <query>", "notes that fit best", 1, 1, verbatim=True),
    "literature_search": Signature("literature_search <query> [<n>]", "finds papers", 1, 2),
    "parse_pdf_url": Signature("parse_pdf_url <url>", "the text of a PDF", 1, 1),
}
"""The syntax and the number of arguments of each tool of the `mlgym` format, by the tool's name."""
OPTIONAL = ("memory_write", "memory_read", "literature_search", "parse_pdf_url")
"""The names of the tools that are available only if the run or the task allows them."""


def _taught(name: str) -> str:
    signature = SIGNATURES[name]
    return f"{signature.usage}\n    {signature.does}"


_INSTRUCTIONS = "\n".join(
    [
        "Reply with a discussion, then exactly one block fenced by ``` that holds exactly one command:",
        "",
        *(_taught(name) for name in SIGNATURES if name not in OPTIONAL),
        "validate\n    scores the artefact",
        "submit\n    scores it and finishes",
        "",
        "Anything else is a bash script of any number of lines. Working directory and exported "
        "variables are kept, standard input is empty, and what runs too long is killed. "
        "An edit that brings a .py file new errors is refused.",
    ]
)


class MLGym(ActionFormat):
    """The `mlgym` action format: the only fenced block contains one tool call, `validate`, `submit` or a bash
    script."""

    name = "mlgym"
    instructions = _INSTRUCTIONS
    optional: Mapping[str, str] = {name: _taught(name) for name in OPTIONAL}
    uses_tools = True
    retries: int | None = 2

    def parse(self, reply: str) -> Action:
        lines = _block(reply)
        first = next((n for n, line in enumerate(lines) if not _is_idle(line)), None)
        if first is None:
            raise FormatError("Format error: the block is empty. Put one command in it.")
        word = lines[first].split(maxsplit=1)[0]
        if word in SIGNATURES or word in _ENDINGS:
            return _command(word, lines[first:])
        script = "\n".join(lines).strip("\n")
        if (last := _tool_at(lines[-1])) is not None:
            raise FormatError(f"Format error: `{last}` must be alone in its block.")
        return Action(script=script)

    def render(self, thought: str, action: Action) -> str:
        text = action.text
        longest = max((len(run) for run in re.findall("`+", text)), default=0)
        fence = "`" * max(3, longest + 1)
        return f"{thought}\n{fence}\n{text}\n{fence}"

    def opening(self, standing: Standing) -> str:
        return self.footer(standing)

    def footer(self, standing: Standing) -> str:
        left = "" if standing.left is None else f"[{standing.left} turns left] "
        return f"\n{left}[open: {standing.open_file or 'none'}] [in: {standing.cwd}]\n$"


def _block(reply: str) -> list[str]:
    """Returns the lines in the only fenced block of a reply, without outer blank lines.

    Raises FormatError if the reply has no fenced block, more than one, or one that is not closed.
    """
    blocks: list[list[str]] = []
    fence = ""
    for line in reply.split("\n"):
        if fence:
            if len(mark := line.strip()) >= len(fence) and not mark.strip("`"):
                fence = ""
            else:
                blocks[-1].append(line)
        elif match := _FENCE.match(line):
            fence = match[1]
            blocks.append([])
    if fence:
        raise FormatError(f"Format error: the block is not closed by a line of {fence}.")
    if len(blocks) != 1:
        fault = "no fenced block" if not blocks else f"{len(blocks)} fenced blocks"
        raise FormatError(
            f"Format error: {fault} found. Reply with a discussion and exactly one fenced block; "
            "one that holds a line of ``` is fenced by ````."
        )
    lines = blocks[0]
    while lines and not lines[-1].strip():
        lines.pop()
    first = next((n for n, line in enumerate(lines) if line.strip()), 0)
    return lines[first:]


def _is_idle(line: str) -> bool:
    """Whether a line of a script is blank or a comment, so that it has no effect."""
    return not line.strip() or line.lstrip().startswith("#")


def _tool_at(line: str) -> str | None:
    """Returns the first word of a line if this word is the name of a command (a tool, `validate` or
    `submit`), else None."""
    try:
        first = next(iter(words.split(line)), "")
    except ValueError:
        return None
    return first if first in SIGNATURES or first in _ENDINGS else None


def _command(name: str, lines: list[str]) -> Action:
    """Parses the lines of a block that begins with the word `name` (a tool's name, `validate` or `submit`),
    and returns the action.

    Raises FormatError if the lines are not exactly one well-formed command.
    """
    head = lines[0].strip()
    signature = SIGNATURES.get(name)
    if signature is not None and signature.body:
        return Action(tool=ToolCall(name, _words(head), _body(name, lines[1:])))
    if signature is not None and signature.verbatim:
        return Action(tool=ToolCall(name, _verbatim("\n".join([head, *lines[1:]])[len(name) :])))
    if any(not _is_idle(line) for line in lines[1:]):
        raise FormatError(
            f"Format error: more follows `{name}`. Put exactly one command in the block."
        )
    if signature is not None:
        return Action(tool=ToolCall(name, _words(head)))
    if head != name:
        raise FormatError(f"Format error: `{name}` takes no arguments.")
    return Action(ending=_ENDINGS[name])


def _words(head: str) -> tuple[str, ...]:
    """Returns the arguments in `head`, the first line of a tool call: the words after the tool's name, with
    quotes removed as in a shell. Raises FormatError if a quote is not closed."""
    try:
        return tuple(words.split(head)[1:])
    except ValueError as error:
        raise FormatError(f"Format error: {error} in `{head:.200}`.") from None


def _verbatim(text: str) -> tuple[str, ...]:
    """Returns the arguments in a call of a tool with a single argument that is not split into words, such as
    `memory_write some text`. `text` is everything after the tool's name. The result is the tuple (`text`,),
    without surrounding quotes; an empty tuple if `text` is blank."""
    text = text.strip()
    if text[:1] in ("'", '"'):
        try:
            parts = words.split(text)
        except ValueError:
            parts = []
        text = parts[0] if len(parts) == 1 else text
    return (text,) if text.strip() else ()


def _body(name: str, lines: list[str]) -> tuple[str, ...]:
    """Returns the body of a call of the tool `name`: the lines before the line `end_of_NAME`. `lines` are all
    lines that follow the call's first line in its block.

    Raises FormatError if the line `end_of_NAME` is missing, or if a command follows it.
    """
    end = f"end_of_{name}"
    at = next((n for n, line in enumerate(lines) if line.strip() == end), None)
    if at is None:
        raise FormatError(f"Format error: `{name}` must end with the line {end}.")
    if any(not _is_idle(line) for line in lines[at + 1 :]):
        raise FormatError(
            f"Format error: more follows {end}. Put exactly one command in the block."
        )
    return tuple(lines[:at])
