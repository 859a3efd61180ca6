"""The `code_block` action format: a thought and exactly one fenced block (text between two lines of
backticks), whose text is the answer.

The opening fence may name a language. If the text itself contains a line of backticks, the fences around it
must have more backticks.
"""

from __future__ import annotations

import re

from air.actions.base import FormatError, Message
from air.actions.world_format import AnswerFormat


class CodeBlock(AnswerFormat):
    """The `code_block` action format: the text of the only fenced block is the answer."""

    name = "code_block"
    form = "Reply with a short thought, then exactly one block fenced by ``` that is your answer."

    def answer_in(self, message: Message) -> str:
        blocks: list[list[str]] = []
        fence = ""
        for line in message.text.split("\n"):
            if fence:
                mark = line.strip()
                if len(mark) >= len(fence) and not mark.strip("`"):
                    fence = ""
                else:
                    blocks[-1].append(line)
            elif opened := _fence_of(line):
                fence = opened
                blocks.append([])
        if fence:
            raise FormatError(f"Format error: the block is not closed by a line of {fence:.80}.")
        if not blocks:
            raise FormatError(f"Format error: no fenced block found. {self.form}")
        if len(blocks) > 1:
            raise FormatError(f"Format error: {len(blocks)} blocks found. Write exactly one.")
        return "\n".join(blocks[0])

    def reply_with(self, thought: str, answer: str) -> str:
        longest = max((len(run) for run in re.findall("`+", answer)), default=0)
        fence = "`" * max(3, longest + 1)
        return f"{thought}\n{fence}\n{answer}\n{fence}"


def _fence_of(line: str) -> str:
    """Returns the backticks with which a line opens a fenced block; empty if the line opens none."""
    mark = line.lstrip(" ")
    rest = mark.lstrip("`")
    count = len(mark) - len(rest)
    if count < 3 or len(line) - len(mark) > 3 or "`" in rest:
        return ""
    return "`" * count
