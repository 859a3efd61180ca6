"""The action format (the rule by which a reply becomes an action) of tasks `proposal:` and, without tools, of
tasks `posed:`: the whole reply is the action."""

from __future__ import annotations

from air.actions.base import Message
from air.actions.world_format import AnswerFormat

FORMAT = "air.worlds.proposals.whole_reply:WholeReply"
"""The import path of the action format `WholeReply`, which serves as its name in settings."""


class WholeReply(AnswerFormat):
    """The action format `whole_reply`: the action is the whole text of a reply, without reasoning that the
    server returned separately."""

    name = "whole_reply"
    form = "Put the final answer in \\boxed{…}."

    def answer_in(self, message: Message) -> str:
        return message.text

    def reply_with(self, thought: str, answer: str) -> str:
        return f"{thought}{answer}"
