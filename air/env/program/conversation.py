"""Checks the requests to the model of a program that plays the agent inside the box, the agent's container.
Only requests that continue the program's conversation with the model reach the model.

The agent's commands run as the same user as the program, so they could send requests of their own. Such
requests must not reach the model, because each reply of the model becomes part of the episode's trace
(`verifiers`' record), which is trained on. The first request is sent before any command of the agent can run.
Its headers, and all its fields except the messages, are used for all later requests. Every later request must
repeat the messages of the previous request and the model's reply unchanged, and may only add tool results and
one user message (see `air.env.program.messages`). The model server gets the fields of the first request and
the known fields of the messages, and nothing else. If a request equals the previous one, the stored response
is sent, and the model is not called again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from air import json_lines
from air.env.program import messages as checks
from air.env.program.http_requests import HttpRequest
from air.env.program.messages import Json, MessageError

PATH = "/v1/chat/completions"
FIRST_ROLES = ("system", "developer", "user")


@dataclass
class Conversation:
    """The conversation between the model and the program that plays the agent inside a box (a container).
    Checks that each request of the program continues the conversation so far."""

    trace: Any
    """The episode's trace, the record to which `verifiers` appends every reply of the model."""
    first: HttpRequest | None = None
    """The first request to which the model has replied. None: there is none yet."""
    settings: Json = field(default_factory=dict)
    """All fields of the program's first request except its messages. Every later request is sent to the model
    with these fields, whatever the program wrote."""
    sent: list[Json] = field(default_factory=list)
    """The messages of the last request to which the model replied, as the program in the box sent them."""
    passed: list[Json] = field(default_factory=list)
    """The messages of the last request to which the model replied, as they were sent to the model."""
    last: bytes = b""
    """The body of the last request to which the model replied, as the program in the box sent it."""
    answer: bytes = b""
    """The bytes of the model endpoint's response to the last request with a reply."""

    def read(self, request: HttpRequest) -> Json | str:
        """Checks a request of the program. Returns the JSON object to send to the model or, if the request
        must be refused, a string with the reason."""
        if request.method != "POST" or request.path != PATH:
            return f"only POST {PATH} is served"
        if request.header("content-encoding"):
            return "the body must not be compressed"
        try:
            body = _object(request.body)
            if self.first is None:
                _check_first(body["messages"])
                return body
            return self.settings | {"messages": self._continued(body)}
        except MessageError as error:
            return str(error)

    def _continued(self, body: Json) -> list[Json]:
        """Returns the messages to send to the model for a request with the JSON body `body`. Raises
        MessageError if the request does not continue the conversation."""
        messages, known = body["messages"], len(self.sent)
        if _settings(body) != self.settings:
            raise MessageError("only the messages may differ from the first request")
        if messages[:known] != self.sent:
            raise MessageError("it does not continue this episode's conversation")
        reply = next(node.message for node in reversed(self.trace.nodes) if node.sampled)
        if len(messages) == known:
            raise MessageError(checks.CHANGED_REPLY)
        return [
            *self.passed,
            checks.repeated_reply(messages[known], reply),
            *checks.added(messages[known + 1 :], reply),
        ]

    def repeats(self, request: HttpRequest) -> bool:
        """Whether the request's body equals that of the last request with a reply, so that the stored
        response `answer` can be sent again."""
        return self.first is not None and request.body == self.last

    def replied(self, request: HttpRequest, body: Json, answer: bytes) -> None:
        """Stores the model's reply to a request. `body` is the JSON object that was sent to the model, and
        `answer` the bytes of the endpoint's response. The caller must call this after every reply."""
        if self.first is None:
            self.first, self.settings = request, _settings(body)
        self.sent, self.passed = _object(request.body)["messages"], body["messages"]
        self.last, self.answer = request.body, answer


def _object(data: bytes) -> Json:
    """Parses a request's body. Raises MessageError if it is not a JSON object with a list of messages."""
    try:
        body = json_lines.decode(data)
    except ValueError:
        raise MessageError("the body is not JSON") from None
    messages = body.get("messages") if isinstance(body, dict) else None
    if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
        raise MessageError("the body has no list of messages")
    return dict(body)


def _settings(body: Json) -> Json:
    return {name: value for name, value in body.items() if name != "messages"}


def _check_first(messages: list[Json]) -> None:
    if not messages or any(one.get("role") not in FIRST_ROLES for one in messages):
        raise MessageError(
            f"the first request must have messages, all of these roles: {', '.join(FIRST_ROLES)}"
        )
