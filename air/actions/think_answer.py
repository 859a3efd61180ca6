"""The `think_answer` action format: a thought in `<think>`, then one answer in `<answer>`.

The thought may be missing, or be returned by the server in a field of its own. The opening tag `<think>` may
come from the model's chat template. Spaces around the answer, and text around the two parts, are ignored.
"""

from __future__ import annotations

from air.actions.base import FormatError, Message
from air.actions.tags import after_thought, find_tagged_text
from air.actions.world_format import AnswerFormat


class ThinkAnswer(AnswerFormat):
    """The `think_answer` action format: the answer is the text between `<answer>` and `</answer>`."""

    name = "think_answer"
    form = "Reply with your thoughts and exactly one answer: <think>…</think><answer>…</answer>"

    def answer_in(self, message: Message) -> str:
        tagged = find_tagged_text(after_thought(message, ("answer",)), "answer")
        if tagged is None:
            raise FormatError(f"Format error: no <answer> found. {self.form}")
        return tagged.inside.strip()

    def reply_with(self, thought: str, answer: str) -> str:
        return f"<think>{thought}</think><answer>{answer}</answer>"
