"""Extracts the parts of a reply between tags, such as `<answer>` and `</answer>`, for action formats. The
running time is linear in the length of the reply. A malformed reply raises FormatError, whose message the
model sees."""

from __future__ import annotations

from dataclasses import dataclass

from air.actions.base import FormatError, Message


@dataclass(frozen=True)
class TaggedText:
    """The parts of a reply around a pair of tags: the text between the opening and the closing tag, the text
    before, and the text after."""

    before: str
    inside: str
    after: str


def find_tagged_text(text: str, tag: str) -> TaggedText | None:
    """Returns the part of `text` between `<TAG>` and `</TAG>`, and the parts before and after, or None if the
    text contains neither tag. `tag` is TAG, without brackets. Raises FormatError if only one of the two tags
    is there, if a tag occurs twice, or if the closing tag comes first."""
    first, last = f"<{tag}>", f"</{tag}>"
    begins, ends = text.count(first), text.count(last)
    if not begins and not ends:
        return None
    start, end = text.find(first), text.find(last)
    if not begins or (ends and end < start):
        raise FormatError(f"Format error: {last} comes without {first} before it.")
    if not ends:
        raise FormatError(f"Format error: {first} is not closed by {last}.")
    if begins > 1:
        nested = text.find(first, start + 1) < end
        fault = f"{first} is inside another {first}" if nested else f"{begins} {first} found"
        raise FormatError(f"Format error: {fault}. Write exactly one.")
    if ends > 1:
        raise FormatError(f"Format error: {ends} {last} found. Write exactly one.")
    return TaggedText(text[:start], text[start + len(first) : end], text[end + len(last) :])


def after_thought(message: Message, tags: tuple[str, ...]) -> str:
    """Returns the text that follows the thought of a message, or the whole text if there is no thought.

    The thought is in one of three places: between `<think>` and `</think>`; before `</think>`, if the model's
    chat template writes `<think>`; or in the message's field `reasoning`. Raises FormatError if the thought
    is not closed, if there are two thoughts, if nothing follows `</think>`, or if one of `tags` is in the
    thought or before it.
    """
    text = message.text
    if "<think>" not in text and text.count("</think>") == 1:
        text = "<think>" + text
    tagged = find_tagged_text(text, "think")
    before, thought, rest = (
        (tagged.before, tagged.inside, tagged.after) if tagged else ("", "", text)
    )
    for tag in tags:
        for mark in (f"<{tag}>", f"</{tag}>"):
            if mark in before:
                raise FormatError(
                    f"Format error: {mark} comes before <think>. Write {mark} only after the thought."
                )
            if mark in thought or mark in message.reasoning:
                raise FormatError(
                    f"Format error: the thought contains {mark}. Write {mark} only after the thought."
                )
    if tagged is not None and not rest.strip():
        raise FormatError(f"Format error: nothing follows </think>. Write <{tags[0]}> after it.")
    return rest
