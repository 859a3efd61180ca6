"""Reads demonstrations (recorded conversations), and converts them to token ids, with masks that mark the
tokens which the model learns to produce.

A conversation gets the same tokens as it would in an episode. The renderer, which converts chat messages to
token ids, builds the prompt before each reply, and appends each turn without changing earlier tokens. The
training loss counts only those tokens that the model would sample in an episode: a reply's text and the stop
token, but not the role marker and the empty `<think>` block before the text.

The reasoning of a reply is in the field `reasoning_content` of the message, and the chat template converts it
to tokens. Some chat templates, such as Qwen3's, omit the reasoning of earlier replies from later prompts.
Then a conversation becomes several token sequences, so that the model learns each reply after the prompt that
it would get in an episode.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verifiers.v1.dialects.chat import reasoning_text

from air import json_lines
from air.errors import MissingError, UsageError
from air.worlds.agentgym import recordings

Message = dict[str, Any]
LOSS = "loss"
"""The name of an optional field in a reply (a message of the role `assistant`). If the field is false, the
reply is only context: the model does not learn to produce it."""


class Conversation(list[Message]):
    """The messages of a demonstration (as a list), and the definitions of the tools that the model could
    call, in OpenAI's format."""

    def __init__(
        self, messages: Iterable[Message], tools: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        super().__init__(messages)
        self.tools = tools


@dataclass(frozen=True)
class Example:
    """A token sequence for supervised training, with a mask of the same length, which marks the tokens that
    the model learns to produce."""

    token_ids: list[int]
    mask: list[bool]
    """For each token, whether it counts in the training loss. True for the tokens of replies that the model
    learns to produce, including the stop tokens."""

    def cut(self, length: int) -> Example:
        """Returns a copy of this example with only its first `length` tokens."""
        return Example(self.token_ids[:length], self.mask[:length])


@dataclass(frozen=True)
class Demonstration:
    """The result of converting a recorded conversation to token sequences for supervised training."""

    examples: list[Example]
    """The token sequences: one, or several if the prompt of a later reply changes the tokens of earlier
    messages."""
    reasoned: int = 0
    """The number of replies that have reasoning."""
    left_out: int = 0
    """The number of replies whose reasoning the model does not learn, because the chat template omits it."""


def read_examples(path: Path) -> list[Conversation]:
    """Reads a JSON-lines file of demonstrations, and returns each demonstration as a `Conversation`.

    A line is `{"messages": [{"role": …, "content": …}, …]}`. A reply (role `assistant`) can also have
    `reasoning_content`; a reply with `"loss": false` is only context, which the model does not learn to
    produce. A line can have `tools`, in OpenAI's format, which the chat template writes into the prompt. Tool
    calls must be part of a reply's text, in the chat template's format.

    A line can also be a trajectory of AgentGym (a collection of environments for agents), `{"item_id": …,
    "conversations": [{"from": …, "loss": …, "value": …}, …]}`; the model learns only its replies with
    `"loss": true`. The file may also be one JSON list of such entries.

    Raises MissingError if the file does not exist. Raises UsageError, which names the line, if a line is
    malformed or contains no reply that the model can learn.
    """
    if not path.exists():
        raise MissingError("no such file", where=str(path), remedy="check data.name")
    conversations = []
    for place, line in json_lines.entries(path):
        try:
            messages = recordings.messages(line) if "conversations" in line else line["messages"]
            _check(messages)
            tools = line.get("tools") or ()
            if not all(isinstance(tool, dict) for tool in tools):
                raise ValueError("`tools` must be a list of objects")
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"not a demonstration: {error or 'malformed'}",
                where=place,
                remedy='each line is {"messages": [{"role": …, "content": …}, …]} with a reply',
            ) from None
        conversations.append(Conversation(messages, tools))
    return conversations


def _check(messages: Sequence[Message]) -> None:
    """Raises ValueError if a conversation has no reply that the model shall learn (for example, because all
    have `"loss": false`), or if a reply has malformed fields or structured tool calls, which must be part of
    its text instead."""
    replies = [message for message in messages if message["role"] == "assistant"]
    if not any(reply["content"] for reply in replies):
        raise ValueError("no assistant message")
    if not any(reply["content"] and reply.get(LOSS, True) for reply in replies):
        raise ValueError("no reply with a loss of true")
    if not all(isinstance(reply["content"], str) for reply in replies):
        raise ValueError("a reply's `content` must be text; write tool calls into it")
    if any(reply.get("tool_calls") for reply in replies):
        raise ValueError("`tool_calls` cannot be trained on; write them into `content`")
    if not all(isinstance(reply.get(LOSS, True), bool) for reply in replies):
        raise ValueError("`loss` must be true or false")
    if not all(isinstance(one.get("reasoning_content"), str | None) for one in replies):
        raise ValueError("`reasoning_content` must be text")


def tokenize(renderer: Any, tokenizer: Any, messages: Sequence[Message]) -> Demonstration:
    """Converts a conversation to token sequences as in an episode, with masks that are true for the tokens
    which the model learns to produce.

    `renderer` and `tokenizer` are those of the policy. If the renderer changes earlier tokens when it appends
    a turn, a new token sequence begins. Each reply is learnt (true in the masks) exactly once, or not at all
    if its `loss` is false. If the first reply is not learnt, it counts as text that no model has written: its
    tokens are then the same as in the prompt of an episode (see `WorldTask.opening`). Messages after the last
    reply are omitted. Raises ValueError if there is no other reply (role `assistant`).
    """
    tools = [dict(tool) for tool in getattr(messages, "tools", ())] or None
    trained = [message.get(LOSS, True) for message in messages]
    messages = [{k: v for k, v in message.items() if k != LOSS} for message in messages]
    examples: list[Example] = []
    ids: list[int] = []
    mask: list[bool] = []
    reply: list[int] = []
    since = reasoned = left_out = 0
    replies = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
    if replies and not trained[replies[0]]:
        del replies[0]
    for at in replies:
        message = messages[at]
        prompt = _prompt(renderer, messages[:at], ids, reply, messages[since:at], tools)
        if prompt[: len(ids)] != ids:
            examples.append(Example(ids, mask))
            mask = []
        since = at + 1
        with_reasoning = _with_reasoning(renderer, messages[:at], message, tools)
        if reasoning_text(message):
            reasoned += 1
            left_out += with_reasoning is None
        stop = renderer.get_stop_token_ids()[0]
        text = tokenizer.encode(message["content"], add_special_tokens=False)
        reply = with_reasoning or [*text, stop]
        mask = [*mask, *[False] * (len(prompt) - len(mask)), *[trained[at]] * len(reply)]
        ids = [*prompt, *reply]
    if not ids:
        raise ValueError("a demonstration needs at least one reply")
    return Demonstration([*examples, Example(ids, mask)], reasoned, left_out)


def _prompt(
    renderer: Any,
    before: Sequence[Message],
    ids: list[int],
    reply: list[int],
    since: Sequence[Message],
    tools: list[dict[str, Any]] | None,
) -> list[int]:
    """Returns the token ids of the prompt for the next reply. `before` has all messages before this reply,
    and `since` only those after the previous reply. `ids` are all tokens up to the end of the previous reply,
    and `reply` are the previous reply's own tokens. `tools` are the definitions of the tools, or None."""
    if ids and since:
        bridged = renderer.bridge_to_next_turn(ids[: -len(reply)], reply, list(since), tools=tools)
        if bridged is not None:
            return list(bridged.token_ids)
    return list(renderer.render_ids(list(before), tools=tools, add_generation_prompt=True))


def _with_reasoning(
    renderer: Any,
    before: Sequence[Message],
    message: Message,
    tools: list[dict[str, Any]] | None,
) -> list[int] | None:
    """Returns the token ids of the reply `message` with its reasoning, from the end of the prompt to the stop
    token, as the chat template renders them. `before` has all messages before the reply. Returns None if the
    reply has no reasoning, or if the template omits the reasoning."""
    reasoning = reasoning_text(message)
    if not reasoning:
        return None
    plain = {"role": "assistant", "content": message["content"]}
    prompt = renderer.render_ids(list(before), tools=tools, add_generation_prompt=True)
    whole = renderer.render_ids([*before, {**plain, "reasoning_content": reasoning}], tools=tools)
    if whole[: len(prompt)] != prompt or whole == renderer.render_ids(
        [*before, plain], tools=tools
    ):
        return None
    stops = renderer.get_stop_token_ids()
    written = whole[len(prompt) :]
    ends = [number for number, token in enumerate(written) if token in stops]
    return list(written[: ends[-1] + 1]) if ends else [*written, stops[0]]
