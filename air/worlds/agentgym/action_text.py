"""Functions that convert an agent's action to the text that is sent to a server of AgentGym, a collection of
environments for agents.

Some servers would let an agent do more than it is allowed to: the servers with tools evaluate a call's input
as Python, and sqlgym runs any SQL on databases that all episodes share. So the functions for these servers
parse the text, check it, and write it again. Text that fails the check raises Unsendable.

Each public function is the value of the field `send` in the description (`Environment`) of some environments.
All functions in this field are called with two arguments: the action, and the server's previous response. The
functions here ignore the second one, `before`.
"""

from __future__ import annotations

import ast
import json
import re
from typing import Any

from air.actions.base import Action
from air.worlds.agentgym.environment import Unsendable, plain

_CALL = re.compile(
    r"(?:Action:\s*)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)\s*with\s*Action Input:\s*(?P<input>.*)",
    re.DOTALL,
)
_FENCE = re.compile(r"```(?:\w*\n)?(.*?)```", re.DOTALL)
_QUOTED = re.compile(
    r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`|\[[^\]]*\]|--[^\n]*|/\*.*?\*/", re.DOTALL
)
_WRITES = re.compile(r"\b(insert|update|delete|replace\s+into)\b", re.IGNORECASE)
_MOST_BITS = 2_048
"""The maximum size of an integer in a tool call's input, in bits. Python can write every such integer in
decimal: it has at most 617 digits, and Python's limit on digits can never be set below 640."""
_TAGGED = re.compile(r"<(search|answer)>(.*?)</\1>", re.DOTALL)


def bare_line(action: Action, before: Any) -> str:
    """Converts an agent's action to text for servers that expect a single line: returns the first non-empty
    line, with single spaces between words; an empty string if there is none. `before`, the server's previous
    response, is ignored."""
    lines = [" ".join(line.split()) for line in plain(action).splitlines()]
    return next((line for line in lines if line), "")


def tool_call(action: Action, before: Any) -> str:
    """Converts an agent's action, a tool call, to text for servers with tools: `Action: NAME with Action
    Input: INPUT`. The servers evaluate INPUT as Python. So the model's INPUT, a JSON object or a Python dict,
    is parsed and written again as a dict of literals: `{"n": true}` becomes `{'n': True}`. Raises Unsendable
    if the call or INPUT is malformed. `before`, the server's previous response, is ignored."""
    match = _CALL.fullmatch(plain(action))
    if match is None:
        raise Unsendable(
            'This is not the call of a tool. Write: TOOL with Action Input: {"NAME": VALUE}'
        )
    arguments = _literals(match["input"].strip())
    if not isinstance(arguments, dict):
        raise Unsendable(
            'The action input is not a JSON object, such as {"name": "Shanghai"} or {}.'
        )
    return f"Action: {match['name']} with Action Input: {arguments!r}"


def _literals(written: str) -> Any:
    """Parses the string `written` as JSON or, if that fails, as a Python literal, and returns the value.
    Returns None if the string is neither, or if `_is_plain` finds the value unsafe to write as Python."""
    for read in (json.loads, ast.literal_eval):
        try:
            value = read(written)
        except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
            continue
        return value if _is_plain(value) else None
    return None


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Returns whether a value consists only of dicts with string keys, lists, tuples, strings, finite
    numbers, booleans and None, nested at most 20 levels deep, without integers of more than `_MOST_BITS`
    bits. If so, the value's `repr` is a Python literal that evaluates to the same value. `depth` is the
    number of containers around the value, for the recursion."""
    if depth > 20:
        return False
    if isinstance(value, dict):
        return all(isinstance(k, str) and _is_plain(v, depth + 1) for k, v in value.items())
    if isinstance(value, list | tuple):
        return all(_is_plain(each, depth + 1) for each in value)
    if isinstance(value, float):
        return value == value and abs(value) != float("inf")
    if isinstance(value, int):
        return value.bit_length() <= _MOST_BITS
    return value is None or isinstance(value, str)


def select(action: Action, before: Any) -> str:
    """Converts an agent's action to text for a SQL server: returns the query in the last fenced code block
    or, without one, the whole text as the query. Raises Unsendable if this is not a single query that only
    reads, because all episodes share the server's databases. `before`, the server's previous response, is
    ignored."""
    written = plain(action)
    fenced = _FENCE.findall(written)
    query = (fenced[-1] if fenced else written).strip().rstrip("; \n")
    bare = _QUOTED.sub(" ", query)
    if not re.match(r"\s*(select|with|values|explain)\b", bare, re.IGNORECASE):
        raise Unsendable("Only queries that begin with SELECT or WITH are run.")
    # After these words only `WITH … INSERT` and its like could change the data.
    if _WRITES.search(bare) or ";" in bare:
        raise Unsendable("Only one query at a time is run, and only if it changes nothing.")
    return query


def search_or_answer(action: Action, before: Any) -> str:
    """Converts an agent's action to text for a search server: `<search>…</search>` or `<answer>…</answer>`.
    Text without these tags becomes an answer. `before`, the server's previous response, is ignored."""
    if action.tool is not None:
        arguments = action.tool.arguments or {}
        words = [str(value) for value in arguments.values()] or list(action.tool.args)
        return _tagged("search" if action.tool.name == "search" else "answer", " ".join(words))
    written = plain(action)
    if match := _TAGGED.search(written):
        return _tagged(match[1], match[2])
    return _tagged("answer", written)


def _tagged(tag: str, content: str) -> str:
    content = re.sub(r"</?(search|answer|think|information)>", " ", content).strip()
    return f"<{tag}>{content}</{tag}>"


def browser_action(action: Action, before: Any) -> str:
    """Converts an agent's action to text for a browser server, which parses a fixed phrase followed by the
    action between triple backticks. `before`, the server's previous response, is ignored."""
    written = plain(action)
    fenced = _FENCE.findall(written)
    line = " ".join((fenced[-1] if fenced else written).replace("```", " ").split())
    return f"In summary, the next action I will perform is ```{line}```"
