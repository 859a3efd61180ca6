"""The `fenced` action format, similar to that of MLGym (a benchmark of research tasks): a thought and one
fenced block of shell commands.

The last line of the block may be `validate`, which grades the work so far, or `submit`, which also ends the
episode. In tasks that offer tools, the block may instead be one tool call, written as JSON in a block of the
language `tool`.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any, Self

from air.actions.base import Action, ActionFormat, Ending, FormatError, Standing
from air.actions.tool_schemas import CALL_FORM, Toolbox

_OPENING = re.compile(r"```(?:bash|sh|shell)?[ \t]*")
_TOOL = re.compile(r"```tool[ \t]*")
_CLOSING = re.compile(r"```[ \t]*")
_ENDINGS: dict[str, Ending] = {"validate": "validate", "submit": "submit"}


class Fenced(ActionFormat):
    """The `fenced` action format: one fenced block with shell commands or, if there are tools, one tool
    call."""

    name = "fenced"
    instructions = (
        "Reply with a short thought and exactly one ```bash block. "
        "Its last line may be `validate` (score the artefact) or `submit` (score it and finish)."
    )
    optional: Mapping[str, str] = {}
    uses_tools = False
    retries: int | None = None
    toolbox = Toolbox()

    def with_tools(self, tools: Sequence[Mapping[str, Any]], *, answers: bool = False) -> Self:
        other = copy.copy(self)
        other.toolbox = Toolbox(tools)
        other.instructions = "\n".join(
            [
                type(self).instructions,
                "Instead of that block, you may call one tool by exactly one ```tool block, which holds a "
                f"JSON object: {CALL_FORM}",
                other.toolbox.described,
            ]
        )
        return other if tools else self

    def parse(self, reply: str) -> Action:
        call = _first_block(reply, _TOOL) if self.toolbox else None
        if call is not None and reply.count("```") == 2:
            return Action(tool=self.toolbox.parse(call))
        block = _first_block(reply)
        if block is None or reply.count("```") != 2:
            fault = "no complete block" if block is None else "more than one block"
            raise FormatError(f"Format error: {fault} found. Reply with exactly one ```bash block.")
        lines = block.strip("\n").split("\n")
        ending = _ENDINGS.get(lines[-1].strip())
        script = "\n".join(lines[:-1] if ending else lines).strip("\n")
        if not script.strip() and ending is None:
            raise FormatError("Format error: the block is empty. Put a command in it.")
        for line in script.split("\n"):
            if line.strip() in _ENDINGS:
                raise FormatError(
                    f"Format error: `{line.strip()}` must be the last line of the block."
                )
        return Action(script=script if script.strip() else "", ending=ending)

    def render(self, thought: str, action: Action) -> str:
        return f"{thought}\n```{'tool' if action.tool else 'bash'}\n{action.text}\n```"

    def opening(self, standing: Standing) -> str:
        return ""

    def footer(self, standing: Standing) -> str:
        return "" if standing.left is None else f"\n[{standing.left} turns left]"


def _first_block(reply: str, opening: re.Pattern[str] = _OPENING) -> str | None:
    """Returns the text of the first fenced block whose opening line matches `opening`; None if the reply has
    no such line, or no closing line follows it."""
    lines = reply.split("\n")
    first = next((n for n, line in enumerate(lines) if opening.fullmatch(line)), len(lines))
    rest = range(first + 1, len(lines))
    last = next((n for n in rest if _CLOSING.fullmatch(lines[n])), None)
    return None if last is None else "\n".join(lines[first + 1 : last])
