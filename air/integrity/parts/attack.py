"""Defines `PartAttack`: what an agent tries against one tool or one answer checker.

It is a list of replies in an episode of a task `rows:…` with one row. The right answer is `ANSWER`, a word
that is nowhere but in the row. The attack is broken (the defence failed) if the episode fails and so is not
trained on, if it earns more than a plain wrong answer, if an observation has `ANSWER`, or if a check says so.

Texts of settings and replies may have the names of places that only a battery knows: `@ROWS@`, the path of
the file of the row; `@JUDGE@` and `@SEARCH@`, the addresses of a judge and of a search service; `@PORT@`, the
port of a server on this machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from air.integrity.attack import Family, Played

ANSWER = "hidden-answer-7c1f09"
"""The right answer. No attack writes it."""
WRONG = "a-wrong-answer"
"""A plain wrong answer, with which an attack on a tool ends."""
Spec = str | Mapping[str, Any]
Check = Callable[[Played], str]
"""Returns how the defence failed in an episode, beyond its reward, or "" if it held."""


@dataclass(frozen=True)
class Part:
    """A shipped tool or checker in the task of its attacks."""

    kind: str
    """`tool` or `checker`."""
    name: str
    """The name in `TOOLS` or `CHECKERS`."""
    tools: Sequence[Spec] = ()
    """The tools of the episode."""
    checker: Spec = "qa_em"
    row: Mapping[str, Any] = field(
        default_factory=lambda: {"question": "What is it?", "golden_answers": [ANSWER]}
    )
    plain: Sequence[str] = (WRONG,)
    """The replies of a plain episode with a wrong answer, whose reward is the bound."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Text files beside the row, such as a corpus, by name."""
    in_box: bool = False
    """Whether a program runs in a box: in plain process boxes, attacks would hit this machine."""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True)
class PartAttack:
    """One attack on one tool or checker."""

    part: Part
    name: str
    family: Family
    aim: str
    replies: Sequence[str]
    """The model's replies, turn by turn; the last one is repeated."""
    check: Check = lambda played: ""


class PartAttacks(list[PartAttack]):
    """The attacks on some tools or checkers, in the order in which they were added."""

    def calls(
        self,
        part: Part,
        name: str,
        family: Family,
        aim: str,
        *calls: str,
        then: str = "",
        check: Check = lambda played: "",
    ) -> None:
        """Appends an attack by calls of tools, after which the agent gives a wrong answer.

        `then` is a call that must still work after the attack: it prints `WORKS`.
        """
        replies = [*calls, *([then] if then else []), WRONG]
        checks = [check, _works] if then else [check]

        def checked(played: Played) -> str:
            return next((fault for one in checks if (fault := one(played))), "")

        self.append(PartAttack(part, f"{part.name}: {name}", family, aim, replies, checked))

    def answers(
        self, part: Part, name: str, family: Family, aim: str, answer: str, *before: str
    ) -> None:
        """Appends an attack by an answer, perhaps after other replies."""
        self.append(PartAttack(part, f"{part.name}: {name}", family, aim, [*before, answer]))


WORKS = "WORKS-42"
"""What a call of a tool prints that still works. No call has it as one text."""


def _works(played: Played) -> str:
    return "" if WORKS in played.observed else "the tool does not work after the attack"


def call(tool: str, **arguments: Any) -> str:
    """Returns a reply that calls a tool."""
    return raw_call(json.dumps({"name": tool, "arguments": arguments}))


def raw_call(text: str) -> str:
    """Returns a reply with this text as the call."""
    return f"<tool_call>\n{text}\n</tool_call>"


def shows(text: str) -> Check:
    """Returns a check: the text is in no observation."""
    return lambda played: f"an observation has {text!r:.60}" if text in played.observed else ""
