"""Extracts the final answer from a model's reply. Every answer checker uses these rules, unless its docstring
states another rule.

1. Thoughts are removed: the text between `<think>` and `</think>`, all text before a `</think>` without a
   beginning, and all text after a `<think>` without an end. The tags `thinking`, `thought` and `reasoning`
   mark thoughts as well.
2. If the rest contains an `<answer>`, the answer is in the last one. Without its end there is no answer.
3. If that text contains a `\\boxed{`, the answer is the content of the box that begins last. If the box has
   no end or no content, there is no answer.
4. If there is neither, and the last line contains `The answer is …`, `Answer: …` or `#### …`, the answer is
   the text after these words.
5. Otherwise the whole text is the answer.

The running time is linear in the length of the reply.
"""

from __future__ import annotations

import re
from collections import deque

MOST_CHARACTERS = 100_000
"""The number of characters at the end of a reply that are searched for the answer."""
_THOUGHT = re.compile(r"<(?P<end>/?)(?:think|thinking|thought|reasoning)>", re.IGNORECASE)
_ANSWER = re.compile(r"<answer>", re.IGNORECASE)
_ANSWER_END = re.compile(r"</answer>", re.IGNORECASE)
_BOX = re.compile(r"\\(?:boxed|fbox)[ \t]{0,8}\{")
_LEAD = re.compile(r"\banswer(?: is|:| is:)[ \t*:]{0,8}(?=\S)|#### {0,8}(?=\S)", re.IGNORECASE)


def final_answer(reply: str) -> str:
    """Returns the final answer in a model's reply, without surrounding spaces, by the rules in this module's
    docstring: the content of the last `<answer>` or `\\boxed{}`, the text after words such as `Answer:`, or
    else the whole reply without its thoughts. Returns an empty string if there is none."""
    text = outside_thoughts(reply[-MOST_CHARACTERS:])
    tagged = last_tagged(text)
    if tagged is not None:
        text = tagged
    content = last_boxed(text)
    if content is not None:
        return content
    return text.strip() if tagged is not None else _after_lead(text.strip())


def last_boxed(text: str) -> str | None:
    """Returns the content of that `\\boxed{…}` (or `\\fbox{…}`) in `text` which begins last. Returns an empty
    string if its closing brace is missing, and None if there is no box."""
    start = _last(_BOX, text)
    if start is None:
        return None
    depth, position = 1, start.end()
    while position < len(text):
        character = text[position]
        if character == "\\":
            position += 1  # the next character is escaped
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return text[start.end() : position].strip()
        position += 1
    return ""


def last_tagged(text: str) -> str | None:
    """Returns the text in the last `<answer>…</answer>` of `text`. Returns an empty string if the last
    `<answer>` has no end tag, and None if there is no `<answer>`."""
    start = _last(_ANSWER, text)
    if start is None:
        return None
    end = _ANSWER_END.search(text, start.end())
    return text[start.end() : end.start()].strip() if end else ""


def outside_thoughts(text: str) -> str:
    """Returns `text`, a model's reply, without its thoughts: the text between `<think>` and `</think>`,
    before a `</think>` without a beginning, or after a `<think>` without an end. The tags `thinking`,
    `thought` and `reasoning` mark thoughts as well."""
    parts: list[str] = []
    depth, position = 0, 0
    for tag in _THOUGHT.finditer(text):
        if depth == 0:
            parts.append(text[position : tag.start()])
        if not tag["end"]:
            depth += 1
        elif depth:
            depth -= 1
        else:
            parts.clear()  # the thought began before this text
        position = tag.end()
    if depth == 0:
        parts.append(text[position:])
    return "".join(parts)


def _after_lead(text: str) -> str:
    line = text.rpartition("\n")[2]
    lead = _last(_LEAD, line)
    return line[lead.end() :].strip() if lead else text


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return next(iter(deque(pattern.finditer(text), maxlen=1)), None)
