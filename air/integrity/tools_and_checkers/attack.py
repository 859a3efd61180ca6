"""Defines `PartAttack`: an attack on a part of air, which is one tool for agents or one checker of their
answers. A scripted agent tries to earn an undeserved reward or to break the part.

The attack is a list of replies in an episode with one question, the only row of a data set (a task `rows:…`).
The right answer is `ANSWER`, a word that only the row contains. The attack is broken (the defence failed) if
the episode fails, so that training would not use it; if it earns more than a plain wrong answer; if an
observation contains `ANSWER`; if the trajectory is inconsistent; or if the attack's own check finds a fault.

The settings of a task, and replies, may contain placeholders, which are replaced by real values: `@ROWS@`
(only in replies), the path of the file with the row; `@JUDGE@` and `@SEARCH@`, the addresses of a judge (a
model that checks answers) and of a search service; `@PORT@`, the port of a server on this machine; the
addresses of servers that run only if a tool uses them (`SANDBOX_URL`, `MCP_URL`, `RESTARTED_MCP_URL`); and
`OTHER_SESSION`, the id of another client's session with the server `MCP_URL`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from air.integrity.attack import AttackEpisode, Family

ANSWER = "hidden-answer-7c1f09"
"""The right answer of the question in an attack, unless the attacked checker needs another kind of answer. No
attack's reply contains this text, so an observation that contains it proves a leak."""
WRONG = "a-wrong-answer"
"""A plain wrong answer. Every attack on a tool ends with it."""
SANDBOX_URL = "@SANDBOX@"
"""The placeholder for the address of a server that runs programs for its clients (`air serve sandbox`)."""
MCP_URL = "@MCP@"
"""The placeholder for the address of an MCP server (a server of tools) over HTTP."""
RESTARTED_MCP_URL = "@MCP-RESTARTED@"
"""The placeholder for the address of an MCP server over HTTP that is started again whenever its process ends,
as servers in production are."""
OTHER_SESSION = "@MCP-SESSION@"
"""The placeholder for the id of a session that another client has with the server `MCP_URL`. The session is
open during all attacks, and keeps the text `LEFT`."""
LEFT = "left-by-another-episode"
"""What another episode leaves on a server. No attack may make the server show it."""
SESSION_HEADER = "mcp-session-id"
"""The name of the HTTP header with the id of a session with an MCP server."""
Spec = str | Mapping[str, Any]
"""A tool or a checker: its name, or its settings with the key `name`."""
Check = Callable[[AttackEpisode], str]
"""A function that checks an attack's episode for faults that the reward does not show. Returns a message
about how the defence failed, or an empty string if the defence held."""


@dataclass(frozen=True)
class AttackedPart:
    """A tool for agents or an answer checker that ships with air, with the contents of the task in which it
    is attacked."""

    kind: str
    """What the part is: `tool` or `checker`."""
    name: str
    """The name under which air offers the tool (in `TOOLS`) or the checker (in `CHECKERS`)."""
    tools: Sequence[Spec] = ()
    """The tools of the episode."""
    checker: Spec = "qa_em"
    """The answer checker of the episode."""
    row: Mapping[str, Any] = field(
        default_factory=lambda: {"question": "What is it?", "golden_answers": [ANSWER]}
    )
    plain: Sequence[str] = (WRONG,)
    """The agent's replies in an episode without an attack, which ends with a plain wrong answer. The reward
    of this episode is the largest that an attack may earn."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Text files that the task needs, such as a corpus for a search tool: the contents by file name. For a
    file name that ends in `.sqlite`, the contents are SQL statements that create the database. The files are
    written beside the file with the question."""
    in_box: bool = False
    """Whether the tool or checker runs programs in a box (container or process). If so, its attacks are not
    run in process boxes that isolate nothing, because they would damage this machine."""
    variant: str = ""
    """The setting that makes the tool another one than with its defaults, such as `encoder` of the tool
    `search`, which ranks by vectors then. Empty: the tool or checker as it is without the setting."""
    packages: Sequence[str] = ()
    """Python packages that the task's files import. If one is not installed, the attacks are not run."""

    @property
    def label(self) -> str:
        """The name for messages and for the names of attacks: `name`, and the `variant` if there is one."""
        return f"{self.name} ({self.variant})" if self.variant else self.name

    def __str__(self) -> str:
        return f"{self.kind} {self.label}"


@dataclass(frozen=True)
class PartAttack:
    """An attack on one tool or answer checker that ships with air: an agent's scripted replies in an episode
    with one question."""

    part: AttackedPart
    name: str
    family: Family
    aim: str
    replies: Sequence[str]
    """The model's replies, one for each turn. The last reply is repeated until the episode ends."""
    check: Check = lambda played: ""


class PartAttacks(list[PartAttack]):
    """A list of attacks on tools or answer checkers, with methods that add attacks."""

    def calls(
        self,
        part: AttackedPart,
        name: str,
        family: Family,
        aim: str,
        *calls: str,
        then: str = "",
        check: Check = lambda played: "",
    ) -> None:
        """Appends an attack on `part` by the tool calls `calls`, after which the agent gives a wrong answer.

        `then` is a further call, made after the attack, which must print `WORKS`, to show that the tool still
        works. Empty: there is no such call. `aim` says what the agent would gain.
        """
        replies = [*calls, *([then] if then else []), WRONG]
        checks = [check, _works] if then else [check]

        def checked(played: AttackEpisode) -> str:
            return next((fault for one in checks if (fault := one(played))), "")

        self.append(PartAttack(part, f"{part.label}: {name}", family, aim, replies, checked))

    def answers(
        self, part: AttackedPart, name: str, family: Family, aim: str, answer: str, *before: str
    ) -> None:
        """Appends an attack on `part` by the wrong answer `answer`, which is the agent's last reply. The
        replies `before` precede it. `aim` says what the agent would gain."""
        self.append(PartAttack(part, f"{part.label}: {name}", family, aim, [*before, answer]))


WORKS = "WORKS-42"
"""The text that a tool call prints to show that the tool still works. No reply contains this text in one
piece."""


def _works(played: AttackEpisode) -> str:
    return "" if WORKS in played.observed else "the tool does not work after the attack"


def call(tool: str, **arguments: Any) -> str:
    """Returns a model's reply that calls the tool with this name and these arguments."""
    return raw_call(json.dumps({"name": tool, "arguments": arguments}))


def raw_call(text: str) -> str:
    """Returns a model's reply with a tool call. `text` is the content of the call; it should be JSON, but may
    be malformed."""
    return f"<tool_call>\n{text}\n</tool_call>"


def shows(text: str) -> Check:
    """Returns a check (see `Check`) that finds a fault if an observation (a text that the agent got) contains
    `text`."""
    return lambda played: f"an observation has {text!r:.60}" if text in played.observed else ""
