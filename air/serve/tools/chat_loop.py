"""Runs the loop of one chat: gets a reply of the model, performs the tool call in the reply, and sends the
result back to the model, until the model gives a final answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from air.actions import ActionFormat, FormatError, Message, MessageCall
from air.errors import BoxEndedError, InferenceError
from air.serve.tools.model_endpoint import ChatState, Model
from air.serve.tools.sessions import BOX_ENDED, Session


async def run_chat(
    model: Model,
    form: ActionFormat,
    session: Session,
    messages: Sequence[Mapping[str, Any]],
    sampling: Mapping[str, Any],
    max_turns: int,
) -> ChatState:
    """Runs a chat until the model gives a final answer, has written `max_turns` replies, or writes a reply
    that is cut off at the limit of tokens. Returns the chat's final state. `form` is the action format, which
    finds the tool call in a reply, and `session` has the opened tools.

    Raises the errors of `Model.reply` and `Session.call`, except for BoxEndedError: if the model's own
    commands ended the box (container) of its tools, the model is told so and can still answer.
    """
    state = ChatState()
    history = [dict(message) for message in messages]
    while state.turns < max_turns:
        answer = await model.reply(history, sampling)
        choice = answer["choices"][0]
        state.count(answer.get("usage"))
        message = _message(choice["message"])
        state.text = message.text
        if choice.get("finish_reason") == "length":
            return state  # a reply that was cut off is no action
        observation, ended = await _perform(state, form, session, message)
        if ended:
            state.reason = "stop"
            return state
        history += [_as_sent(message), *form.observation(message, observation)]
    return state


async def _perform(
    state: ChatState, form: ActionFormat, session: Session, message: Message
) -> tuple[str, bool]:
    """Performs the tool call in a model's message. Returns a pair: the text that the model gets as the
    result, and whether the chat has ended. A final answer ends it, and a tool can do so. If the message is
    malformed, the text says why."""
    try:
        action = form.read(message)
    except FormatError as error:
        return str(error), False
    if action.tool is None:
        state.text = action.answer or action.text
        return "", True
    state.calls.append(action.tool.name)
    try:
        result = await session.call(action.tool.name, dict(action.tool.arguments or {}))
    except BoxEndedError:
        return BOX_ENDED, False  # the model can still answer
    if result.status == "finish":
        state.text = result.prediction
        return "", True
    return result.observation, False


def _message(raw: Mapping[str, Any]) -> Message:
    """Converts a message in the endpoint's response to air's class `Message`. Raises InferenceError if the
    message is malformed."""
    try:
        calls = tuple(
            MessageCall(
                str(call.get("id") or ""), call["function"]["name"], call["function"]["arguments"]
            )
            for call in raw.get("tool_calls") or ()
        )
        text = raw.get("content") or ""
        reasoning = raw.get("reasoning_content") or raw.get("reasoning") or ""
        parts = [text, reasoning, *(part for call in calls for part in (call.name, call.arguments))]
    except (AttributeError, LookupError, TypeError) as error:
        raise InferenceError(f"the model's message is malformed: {error!r}") from None
    if not all(isinstance(part, str) for part in parts):
        raise InferenceError("the model's message is malformed: a text is none")
    return Message(text, calls, reasoning)


def _as_sent(message: Message) -> dict[str, Any]:
    """Converts a message of the model to the JSON object with which the next requests to the model contain
    it, as a part of the chat so far."""
    sent: dict[str, Any] = {"role": "assistant", "content": message.text}
    if message.tool_calls:
        sent["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    return sent
