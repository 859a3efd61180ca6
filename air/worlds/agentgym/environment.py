"""Defines `Environment`, the description of an AgentGym environment: the form of its requests and responses,
its task ids, and its scores. `environments` contains one such description per environment."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from air.actions.base import Action
from air.errors import ConfigError
from air.worlds.agentgym.client import flag, number, text


class Unsendable(Exception):
    """Raised for an action that may not be sent to the server. The agent sees the exception's message."""


@dataclass(frozen=True)
class ActionResult:
    """The result of one action, read from the server's response."""

    observation: str
    score: float
    """The environment's score after the action, from 0 to 1."""
    raw: float
    """The number in the response from which `score` was computed."""
    done: bool
    failed: bool = False
    """Whether the task can no longer be solved, so that the score of the whole episode becomes 0."""
    fault: str = ""
    """The part of the response that shows that the server failed and did not carry out the action; empty if
    the server did not fail."""


def _id(answer: Any) -> int:
    return int(number(answer["id"]))


def _observation(answer: Any) -> str:
    return text(answer["observation"])


def _reward(answer: Any, sent: str) -> ActionResult:
    raw = number(answer["reward"])
    return ActionResult(_observation(answer), raw, raw, flag(answer["done"]))


def plain(action: Action) -> str:
    """Returns an action as text: a tool call as `NAME with Action Input: JSON`, any other action as the model
    wrote it, without spaces at both ends."""
    if action.tool is None:
        return (action.answer or action.text).strip()
    arguments = dict(action.tool.arguments or {})
    return f"{action.tool.name} with Action Input: {json.dumps(arguments)}"


@dataclass(frozen=True)
class Environment:
    """The description of one environment of AgentGym, such as a game or a set of tools. It says how to write
    the requests to the environment's server and how to read the responses."""

    name: str
    instructions: str
    train: range
    """The ids of the tasks for training."""
    test: range
    """The ids of the held-out tasks."""
    turns: int
    """The default maximum number of turns of an episode."""
    format: str = "react"
    """The name of the default action format, the rule by which a model's reply becomes an action. The run
    file may name another."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """The JSON schemas of the tools that the agent may call in formats with tool calls."""
    key: str = "id"
    """The name of the request field that contains the session's id."""
    path: str = ""
    """A prefix of the paths `/create`, `/reset`, `/step` and `/close`."""
    create: Mapping[str, Any] | None = None
    """The body of the request that creates a session; None: the request has no body."""
    session: Callable[[Any], int] = _id
    """A function that extracts the session's id from the server's response to `/create`."""
    reset: Callable[[int], Mapping[str, Any]] = lambda data: {"data_idx": data}
    """A function from a task's id to the fields of the request `/reset`, which starts this task."""
    first: Callable[[Any], str] = _observation
    """A function that extracts the first observation from the server's response to `/reset` or, if
    `first_path` is set, from the response to the request for that path."""
    reset_fault: Callable[[Any], bool] = lambda answer: False
    """A function that returns whether the response to `/reset` reports that the server could not start the
    task."""
    first_path: str = ""
    """The path of a GET request for the first observation; empty if the response to `/reset` contains it."""
    as_recorded: Callable[[str, str], str] = lambda recorded, first: first
    """A function that returns the first observation that the agent sees in an episode that begins like a
    recorded trajectory. Its arguments are the first observation in that trajectory, whose form it imitates,
    and the server's first observation."""
    send: Callable[[Action, Any], str] = lambda action, before: plain(action)
    """A function that converts an action to the text that is sent to the server. Its second argument is the
    server's previous response. It raises Unsendable if the action may not be sent."""
    outcome: Callable[[Any, str], ActionResult] = _reward
    """A function that extracts the result of an action from the server's response. Its second argument is the
    text that was sent."""
    success: float = 1.0
    """The lowest score that counts as a success."""
    closes: bool = True
    """Whether the server has a request that closes a session."""
    probe_action: str = ""
    """A harmless action whose response shows that the session works. Empty: there is no such action; then
    `probe_path` and `known_actions` are needed."""
    probe_path: str = ""
    """The path of a GET request whose response shows that the session works. Empty: there is no such
    path."""
    known_actions: tuple[str, ...] = ()
    """Actions that a working server answers in every session: one for each service that the server uses. They
    are sent after a failure, to find out whether the server works, and may change the session. Empty:
    `probe_action` is used."""
    repeats: bool = True
    """Whether an episode's actions may be repeated in another session, to find out whether the agent or the
    server caused a failure. False if actions change something that the sessions share, such as a web site or
    an account."""
    sessions: int = 64
    """The maximum number of sessions that one process uses on one server at the same time."""
    shares: bool = False
    """Whether the server has only a fixed number of sessions, which all clients share: if all sessions are in
    use, it gives a new client a session that another client still uses."""
    refused: tuple[str, ...] = ()
    """Strings by which an observation shows that the server rejected an action as invalid: the observation
    begins with one of them. Empty: observations do not show this."""

    def __post_init__(self) -> None:
        """Raises ConfigError if no request can show that a session works, or that the server works."""
        where = f"AgentGym environment {self.name}"
        if not (self.known_actions or self.probe_action):
            problem = "has neither `known_actions` nor `probe_action`"
            raise ConfigError(problem, where=where, remedy="set one of them")
        if not (self.probe_path or self.probe_action):
            problem = "has neither `probe_path` nor `probe_action`"
            raise ConfigError(problem, where=where, remedy="set one of them")

    @property
    def known(self) -> tuple[str, ...]:
        """The actions by which a new session shows that the server works, because a working server answers
        them: `known_actions` or, if that is empty, the single action `probe_action`."""
        return self.known_actions or (self.probe_action,)

    @property
    def ids(self) -> range:
        """The ids of all tasks, both for training and held out."""
        return range(min(self.train.start, self.test.start), max(self.train.stop, self.test.stop))
