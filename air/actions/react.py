"""The action formats `react` and `react_line`: `Thought:` and a thought, then `Action:` and an action.

In `react` the action is all text after the last `Action:`. In `react_line` there is exactly one `Action:`,
and the action ends with its line. Spaces around the action are ignored. A reply in which the model
continues after the action, with an `Observation:` or another `Thought:`, is invalid.
"""

from __future__ import annotations

from air.actions.base import FormatError, Message
from air.actions.world_format import AnswerFormat

_MARK = "Action:"
_AFTERWARDS = ("Thought:", "Observation:")
"""Labels that may not begin a line of an action: they show that the model continued past its action."""


class React(AnswerFormat):
    """The `react` action format: the action is all text after the last `Action:`."""

    name = "react"
    form = "Reply in this form, and stop after the action:\nThought: your thoughts\nAction: your action"

    def answer_in(self, message: Message) -> str:
        text = message.text
        if _MARK not in text:
            raise FormatError(f"Format error: no `{_MARK}` found. {self.form}")
        answer = self.action_after_mark(text)
        for line in answer.split("\n"):
            for beginning in _AFTERWARDS:
                if line.lstrip().startswith(beginning):
                    raise FormatError(
                        f"Format error: `{beginning}` follows the action. Stop after the action."
                    )
        return answer

    def action_after_mark(self, text: str) -> str:
        """Returns the action in `text`, a reply that contains `Action:`. In the subclass `ReactLine`,
        raises FormatError if `Action:` occurs twice, or if more text follows the action's line."""
        return text.rpartition(_MARK)[2].strip()

    def reply_with(self, thought: str, answer: str) -> str:
        return f"Thought: {thought}\n{_MARK} {answer}"


class ReactLine(React):
    """The `react_line` action format: the action is the rest of the line after the only `Action:`."""

    name = "react_line"
    form = (
        "Reply in this form, with exactly one action in one line, and stop after it:\n"
        "Thought: your thoughts\nAction: your action"
    )

    def action_after_mark(self, text: str) -> str:
        if (count := text.count(_MARK)) > 1:
            raise FormatError(f"Format error: {count} `{_MARK}` found. Write exactly one.")
        action, _, rest = text.partition(_MARK)[2].strip().partition("\n")
        if rest.strip() and not rest.lstrip().startswith(_AFTERWARDS):
            raise FormatError(
                "Format error: more follows the action's line. Stop after the action."
            )
        return f"{action}\n{rest}".strip()
