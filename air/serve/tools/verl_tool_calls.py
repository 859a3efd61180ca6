"""Finds the tool call in a model's reply, in the syntaxes that verl-tool supports, and puts the tool's result
(the observation) into the matching syntax.

In the table, a fence is a Markdown code block with the given word after the three opening backticks. "All"
means that the contents of all these blocks are joined.

| tool | forms of an action | observation |
|---|---|---|
| `code_interpreter` | all `<python>…</python>`, else all fences `python` | `<result>` or a fence |
| `bash` | all `<bash>…</bash>`, else all fences `bash`, `sh`, `shell`, `terminal` | `<o>` or a fence |
| `search` | the last `<search>…</search>`; `<answer>…</answer>` ends the trajectory | `<information>` |
| `sql` | the last `<sql>…</sql>`; `<solution>…</solution>` ends the trajectory | `<observation>` |
| any | the last `<tool_call>{"name": …, "arguments": {…}}</tool_call>` | `<tool_response>` |

A trajectory is a client's sequence of tool calls. A reply can be very long, so every search in this module
takes linear time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from air import json_schema
from air.tools.episode_tools import MOST_ARGUMENTS

FENCE = "```"


@dataclass(frozen=True)
class ParsedCall:
    """A tool call that was found in a model's reply."""

    tool: str
    arguments: Any
    """The arguments of the call: normally a JSON object, but a model can write any other JSON value."""
    format_observation: Callable[[str], str]
    """A function that puts the result of the call into the matching syntax, such as `<result>…</result>`. It
    takes and returns text."""


@dataclass(frozen=True)
class TrajectoryEnd:
    """Says that a model's reply ends the trajectory (the client's sequence of tool calls), for instance
    because the reply has a final answer."""


def read(
    reply: str, tools: Collection[str], extra: Mapping[str, Any] | None = None
) -> ParsedCall | TrajectoryEnd | None:
    """Returns the tool call in a model's reply, `TrajectoryEnd` if the reply ends the trajectory (the
    client's sequence of tool calls), or None if it does neither. `tools` are the names of the server's tools.
    The syntaxes of these tools are tried in this order, then the syntax `<tool_call>`. `extra` has further
    data about the action, from the request's `extra_fields`."""
    for tool in tools:
        reader = _READERS.get(tool)
        if reader is not None and (found := reader(reply, extra or {})) is not None:
            return found
    if (call := _tool_call(reply)) is not None:
        return call
    for tool, tag in (("search", "answer"), ("sql", "solution")):
        if tool in tools and between(reply, f"<{tag}>", f"</{tag}>"):
            return TrajectoryEnd()
    return None


def call_ends(tools: Iterable[str]) -> list[str]:
    """Returns the strings at which a model that continues a text should be stopped, because a tool call may
    end there. `tools` are the names of the server's tools. A fence that ends a code block is none: only the
    beginning of the block for the result shows that the code is to be run."""
    ends = [end for tool in tools for end in _ENDS.get(tool, ())]
    return list(dict.fromkeys([*ends, "</tool_call>"]))


def stdin_of(reply: str, extra: Mapping[str, Any]) -> str | None:
    """Returns the standard input for the Python code in a reply: the content of the reply's first code block
    with the tag `input`. If there is none, returns the value of `stdin` in `extra`, further data from the
    request; None if there is none either."""
    for text in fenced(reply, ("input",)):
        return text.strip()
    value = extra.get("stdin")
    return value if isinstance(value, str) and value else None


def between(text: str, start: str, end: str) -> list[str]:
    """Returns the pieces of `text` between a marker `start` and the next marker `end`, from left to right."""
    parts, place = [], 0
    while (first := text.find(start, place)) >= 0:
        first += len(start)
        last = text.find(end, first)
        if last < 0:
            break
        parts.append(text[first:last])
        place = last + len(end)
    return parts


def fenced(text: str, languages: Collection[str]) -> Iterator[str]:
    """Yields the contents of the Markdown code blocks whose tag (the word after the three opening backticks)
    is one of `languages`."""
    place = 0
    while (first := text.find(FENCE, place)) >= 0:
        first += len(FENCE)
        word = next(iter(text[first : first + 16].split(None, 1)), "")
        if word not in languages:
            place = first
            continue
        first = text.index(word, first) + len(word)
        last = text.find(FENCE, first)
        if last < 0:
            return
        yield text[first:last]
        place = last + len(FENCE)


def _python(reply: str, extra: Mapping[str, Any]) -> ParsedCall | None:
    code = _code(reply, "python", ("python",))
    if code is None:
        return None
    if (stdin := stdin_of(reply, extra)) is not None:
        code = f"import io, sys; sys.stdin = io.StringIO({stdin!r})\n{code}"
    return ParsedCall("code_interpreter", {"code": code}, lambda text: _format_python(reply, text))


def _format_python(reply: str, text: str) -> str:
    if "```output" in reply or "```python" in reply:
        if reply.count(FENCE) % 2 == 0:
            return f"\n```result\n{text}\n```\n"
        return f"\n{text}\n```\n"  # the reply has opened the fence
    if "</tool_call>" in reply:
        return f"\n<tool_response>\n```result\n{text}\n```\n</tool_response>\n"
    if reply.strip(" \n").endswith("<result>"):
        return f"\n{text}\n</result>\n"
    return f"\n<result>\n{text}\n</result>\n"


def _bash(reply: str, extra: Mapping[str, Any]) -> ParsedCall | None:
    command = _code(reply, "bash", ("bash", "sh", "shell", "terminal"))
    if command is None:
        return None
    return ParsedCall("bash", {"command": command}, lambda text: _format_bash(reply, text))


def _format_bash(reply: str, text: str) -> str:
    if reply.endswith("```output"):
        return f"\n{text}\n```\n"
    if reply.endswith("</tool_call>"):
        return f"\n```output\n{text}\n```\n"
    if reply.endswith("<o>"):
        return f"\n{text}\n</o>\n"
    if "</bash>" in reply:
        return f"\n<o>\n{text}\n</o>\n"
    if reply.count(FENCE) % 2 == 0:
        return f"\n```output\n{text}\n```\n"
    return f"output\n{text}\n```\n"


def _search(reply: str, extra: Mapping[str, Any]) -> ParsedCall | None:
    queries = between(reply, "<search>", "</search>")
    if not queries:
        return None
    arguments = {"query": queries[-1].strip()}
    return ParsedCall(
        "search", arguments, lambda text: f"\n\n<information>{text.strip()}</information>\n\n"
    )


def _sql(reply: str, extra: Mapping[str, Any]) -> ParsedCall | None:
    queries = between(reply, "<sql>", "</sql>")
    if not queries:
        return None
    left = extra.get("turns_left")
    note = ""
    if isinstance(left, int):
        note = f"\n<reminder>You have {left} turns left to complete the task.</reminder>"
    return ParsedCall(
        "sql",
        {"query": queries[-1].strip()},
        lambda text: f"\n\n<observation>{text}{note}</observation>\n\n",
    )


_READERS: Mapping[str, Callable[[str, Mapping[str, Any]], ParsedCall | None]] = {
    "code_interpreter": _python,
    "bash": _bash,
    "search": _search,
    "sql": _sql,
}


_ENDS: Mapping[str, Sequence[str]] = {
    "code_interpreter": ("</python>", "```output"),
    "bash": ("</bash>", "```output"),
    "search": ("</search>",),
    "sql": ("</sql>",),
}


def _code(reply: str, tag: str, languages: Collection[str]) -> str | None:
    """Returns the joined code of all code blocks in a reply, or None if there is none. Code blocks are XML
    elements with the tag `tag`; if there are none, Markdown code blocks whose tag is one of `languages`."""
    parts = between(reply, f"<{tag}>", f"</{tag}>") or list(fenced(reply, languages))
    return "\n".join(part.strip() for part in parts) if parts else None


def _tool_call(reply: str) -> ParsedCall | None:
    parts = between(reply, "<tool_call>", "</tool_call>")
    if not parts or len(parts[-1]) > 2 * MOST_ARGUMENTS:
        return None
    try:
        call = json_schema.parse(parts[-1], "the call")
    except ValueError:
        return None
    name = call.get("name") if isinstance(call, Mapping) else None
    if not isinstance(name, str):
        return None
    return ParsedCall(
        name,
        call.get("arguments", {}),
        lambda text: f"\n<tool_response>\n{text}\n</tool_response>\n",
    )
