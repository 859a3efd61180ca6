"""Parses a proposal, the text of a model that proposes questions: one question in `<question>…</question>`,
followed by its answer in `\\boxed{…}`.

A proposal is untrusted. It is malformed if it could interfere with the chat template of the executor (the
model that answers the question), end the question early, or leak the answer: if it has a second question tag,
a `\\boxed` in the question, markup of chat templates or action formats, control or hidden characters, or too
many characters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

OPEN, CLOSE = "<question>", "</question>"
LONGEST_QUESTION = 4000
LONGEST_ANSWER = 200
_BOXED = re.compile(r"\\boxed\s*\{")
_MARKUP = re.compile(
    r"<\|[^<>|]*\|>|</?\s*(?:question|answer|think|tool_call|tool_response|python|s)\s*>|\[/?INST\]",
    re.IGNORECASE,
)
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u180e\ud800-\udfff\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    r"\ufff9-\ufffb\U000e0000-\U000e0fff]"
)


@dataclass(frozen=True)
class Question:
    """A question that a model (the proposer) wrote, with the proposer's own answer."""

    text: str
    answer: str


class Malformed(ValueError):
    """Raised for a text that is not a valid proposal (a question with an answer). The message gives the
    reason."""


def read(text: str, longest: int = LONGEST_QUESTION) -> Question:
    """Parses a proposal, and returns its question and answer. Raises Malformed if the text is not exactly one
    question followed by its answer, or has control characters or markup that could mislead the model that
    answers the question. `longest` is the maximum length of the question in characters."""
    lowered = text.lower()
    if lowered.count(OPEN) != 1 or lowered.count(CLOSE) != 1:
        raise Malformed(f"the text needs {OPEN} and {CLOSE} exactly once")
    before, _, rest = text.partition(OPEN)
    question, closed, after = rest.partition(CLOSE)
    if not closed or CLOSE in before:
        raise Malformed(f"{CLOSE} must follow {OPEN}, in lower case")
    question = question.strip()
    if not question:
        raise Malformed("the question is empty")
    if len(question) > longest:
        raise Malformed(f"the question has more than {longest} characters")
    if _CONTROL.search(question) or _MARKUP.search(question):
        raise Malformed("the question has control characters, or markup of a chat or an action")
    if _BOXED.search(question):
        raise Malformed("the question has an answer in it")
    answer = last_boxed(after)
    if answer is None or not answer.strip():
        raise Malformed("the question's answer in \\boxed{…} must follow the question")
    if len(answer) > LONGEST_ANSWER or _CONTROL.search(answer):
        raise Malformed(
            f"the answer has control characters, or more than {LONGEST_ANSWER} characters"
        )
    return Question(question, answer.strip())


def last_boxed(text: str) -> str | None:
    """Returns the content of that closed `\\boxed{…}` in `text` which begins last; None if there is none. The
    running time is linear in the length of the text."""
    starts = {match.end() - 1 for match in _BOXED.finditer(text)}
    if not starts:
        return None
    found: tuple[int, int] | None = None
    open_braces: list[int] = []
    for place, sign in enumerate(text):
        if sign == "{":
            open_braces.append(place)
        elif sign == "}" and open_braces:
            start = open_braces.pop()
            if start in starts and (found is None or start > found[0]):
                found = start, place
    return None if found is None else text[found[0] + 1 : found[1]]
