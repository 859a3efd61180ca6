"""The action format of proposals and answers: the whole reply is the action."""

from __future__ import annotations

from air.actions.base import Message
from air.actions.world_format import AnswerFormat

FORMAT = "air.worlds.proposals.whole_reply:WholeReply"
"""The format's name in settings."""


class WholeReply(AnswerFormat):
    """The action format `whole_reply`: the whole text of a reply, without separate reasoning."""

    name = "whole_reply"
    form = "Put the final answer in \\boxed{…}."

    def answer_in(self, message: Message) -> str:
        return message.text

    def reply_with(self, thought: str, answer: str) -> str:
        return f"{thought}{answer}"
