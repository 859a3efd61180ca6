"""The description of one environment of AgentGym: its requests, its task ids, its scores and its end."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from air.actions.base import Action
from air.worlds.agentgym.client import flag, number, text


class Unsendable(Exception):
    """Exception for an action that is not sent to the server. The agent sees its message."""


@dataclass(frozen=True)
class Outcome:
    """The result of one action, as the environment defines it."""

    observation: str
    score: float
    """The score so far, from 0 to 1."""
    raw: float
    """The number from which `score` was computed, as the server sent it."""
    done: bool
    failed: bool = False
    """Whether the task has failed for good, so that the environment takes back every score."""
    fault: str = ""
    """The server's failure that the answer shows: the action was not carried out. Empty if none."""


def _id(answer: Any) -> int:
    return int(number(answer["id"]))


def _observation(answer: Any) -> str:
    return text(answer["observation"])


def _reward(answer: Any, sent: str) -> Outcome:
    raw = number(answer["reward"])
    return Outcome(_observation(answer), raw, raw, flag(answer["done"]))


def plain(action: Action) -> str:
    """Returns an action as text: the answer, or a tool call as `NAME with Action Input: JSON`."""
    if action.tool is None:
        return (action.answer or action.text).strip()
    arguments = dict(action.tool.arguments or {})
    return f"{action.tool.name} with Action Input: {json.dumps(arguments)}"


@dataclass(frozen=True)
class Environment:
    """The description of one environment, as its server offers it."""

    name: str
    instructions: str
    train: range
    """The ids of the tasks for training."""
    test: range
    """The ids of the tasks that are held out."""
    turns: int
    """The number of turns of an episode."""
    format: str = "react"
    """The action format, unless the run file names another."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """The tools that the format may call, as JSON schemas."""
    key: str = "id"
    """The name of the field in requests that has the session's id."""
    path: str = ""
    """The beginning of all paths of the environment."""
    create: Mapping[str, Any] | None = None
    """The body of the request that creates a session; None: the request has no body."""
    session: Callable[[Any], int] = _id
    """Reads the session's id in the answer to `create`."""
    reset: Callable[[int], Mapping[str, Any]] = lambda data: {"data_idx": data}
    """Returns the fields of the request that starts the task with an id."""
    first: Callable[[Any], str] = _observation
    """Reads the first observation in the answer to `reset`, or to `first_path`."""
    reset_fault: Callable[[Any], bool] = lambda answer: False
    """Whether the answer to `reset` says that the server could not start the task."""
    first_path: str = ""
    """The path of a GET request for the first observation; empty: the answer to `reset` has it."""
    send: Callable[[Action, Any], str] = lambda action, before: plain(action)
    """Returns the text that is sent for an action. The second argument is the server's previous answer.
    Raises Unsendable."""
    outcome: Callable[[Any, str], Outcome] = _reward
    """Reads the result of an action from the answer. The second argument is the text that was sent."""
    success: float = 1.0
    """The lowest score that counts as a success."""
    closes: bool = True
    """Whether the server can close a session."""
    probe_action: str = ""
    """An action that changes nothing, and whose answer shows that the session works. Empty: none."""
    probe_path: str = ""
    """The path of a GET request whose answer shows that the session works. Empty: none."""
    known_actions: tuple[str, ...] = ()
    """Actions that every session answers if the server is well: one for each service that it uses. They may
    change the session. Empty: the harmless one."""
    repeats: bool = True
    """Whether an episode's actions may be carried out again in another session. Not if they change something
    that the sessions share, such as a web site or an account."""
    sessions: int = 64
    """The largest number of sessions that one process uses at the same time."""
    shares: bool = False
    """Whether the server shares sessions: when it has enough of them, it gives out one that is in use."""
    refused: tuple[str, ...] = ()
    """The beginnings of observations that say that an action was not legal. Empty: they do not show it."""

    @property
    def known(self) -> tuple[str, ...]:
        """The actions that every session answers if the server is well."""
        return self.known_actions or (self.probe_action,)

    @property
    def ids(self) -> range:
        """The ids of all tasks, both for training and held out."""
        return range(min(self.train.start, self.test.start), max(self.train.stop, self.test.stop))
