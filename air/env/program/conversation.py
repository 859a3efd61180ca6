"""Decides which requests of a program in the box reach the model: only those that continue its conversation.

The agent's commands run as the program's user, so they can send requests of their own. Each reply of the
model becomes part of the episode's trace, which is trained. So the first request, which is sent before any
command of the agent can run, fixes everything except the messages. Every later request must repeat the last
one's messages and the model's reply to it, unchanged, and may only add messages that are not the model's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from air.env.program.http_requests import HttpRequest

PATH = "/v1/chat/completions"
Json = dict[str, Any]


@dataclass
class Conversation:
    """The conversation of one program with the model."""

    trace: Any
    """The verifiers trace of the episode, to which verifiers adds every reply of the model."""
    settings: Json | None = None
    """All fields of the first request except its messages; None before it."""
    messages: list[Json] = field(default_factory=list)
    """The messages of the last request to which the model has replied."""
    _body: bytes = b""

    def read(self, request: HttpRequest) -> Json | str:
        """Returns the JSON object in a request that may reach the model, or the reason why it may not."""
        if request.method != "POST" or request.path != PATH:
            return f"only POST {PATH} is served"
        if request.header("content-encoding"):
            return "the body must not be compressed"
        try:
            body = json.loads(request.body)
        except (ValueError, RecursionError):
            return "the body is not JSON"
        messages = body.get("messages") if isinstance(body, dict) else None
        if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
            return "the body has no list of messages"
        return self._refusal(request, body) or body

    def _refusal(self, request: HttpRequest, body: Json) -> str:
        messages = body["messages"]
        if self.settings is None:
            return _fault(messages, "system", "developer", "user")
        if request.header("x-stainless-retry-count") > "0" and request.body == self._body:
            return ""  # verifiers repeats its answer
        settings = {name: value for name, value in body.items() if name != "messages"}
        if settings != self.settings:
            return "only the messages may differ from the first request"
        known = len(self.messages)
        if messages[:known] != self.messages:
            return "it does not continue this episode's conversation"
        reply = next(node.message for node in reversed(self.trace.nodes) if node.sampled)
        if len(messages) == known or not same_reply(messages[known], reply):
            return "it does not contain the model's last reply as the model wrote it"
        return _fault(messages[known + 1 :], "user", "tool")

    def replied(self, request: HttpRequest, body: Json) -> None:
        """Must be called after the model has replied to a request."""
        self.settings = {name: value for name, value in body.items() if name != "messages"}
        self.messages, self._body = body["messages"], request.body


def _fault(messages: list[Json], *roles: str) -> str:
    """Returns why a program must not add `messages`, of which only these roles are allowed, or ""."""
    if not messages:
        return "it contains nothing new"
    if any(one.get("role") not in roles for one in messages):
        return f"it adds messages of other roles than {', '.join(roles)}"
    return ""


def same_reply(message: Json, reply: Any) -> bool:
    """Whether a message of a request is the model's `reply`, as verifiers stores it."""
    reasoning = message.get("reasoning_content") or ""
    return (
        message.get("role") == "assistant"
        and (message.get("content") or "") == (reply.content or "")
        and reasoning in ("", getattr(reply, "reasoning_content", None) or "")
        and _calls(message)
        == [(c.id, c.name, _parsed(c.arguments)) for c in reply.tool_calls or ()]
    )


def _calls(message: Json) -> list[tuple[Any, Any, Any]] | None:
    """Returns the tool calls of a message (id, name, arguments), or None if they are malformed."""
    try:
        functions = [(one["id"], one["function"]) for one in message.get("tool_calls") or ()]
        return [(ident, one["name"], _parsed(one["arguments"])) for ident, one in functions]
    except (KeyError, TypeError):
        return None


def _parsed(arguments: Any) -> Any:
    """Returns arguments of a tool call so that equal JSON values are equal; text that is not JSON as it
    is."""
    try:
        return json.loads(arguments)
    except (ValueError, TypeError, RecursionError):
        return arguments
