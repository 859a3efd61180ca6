"""The environments of AgentGym: one description (`Environment`) for each, and small functions that read the
responses and write the actions of environments that differ from the others.

For an environment whose training and test tasks AgentGym does not separate, the last tenth of the task ids is
held out for tests.
"""

from __future__ import annotations

import re
from typing import Any

from air.actions.base import Action
from air.actions.search_r1 import SEARCH
from air.worlds.agentgym import instructions
from air.worlds.agentgym.action_text import (
    bare_line,
    browser_action,
    search_or_answer,
    select,
    tool_call,
)
from air.worlds.agentgym.client import flag, number, text
from air.worlds.agentgym.environment import ActionResult, Environment

_NETWORK_FAILURES = ("HTTPSConnectionPool(", "HTTPConnectionPool(")
"""Substrings by which air recognises, in an observation, that a tool server could not reach the web service
on which a tool depends."""
_PLACE_AND_DAY = "{'latitude': 31.2, 'longitude': 121.5, 'current_date': '2023-01-05'}"
_BROWSER_FAILURES = re.compile(
    r"Env \d+ is dead|Target (page|closed)|Browser (has been )?closed|Broken pipe|Connection reset"
)


def _babyai(answer: Any, sent: str) -> ActionResult:
    # The server's `done` misses a late success, and its `score` counts it again with each further action. The
    # reward of a success is 1 − 0.9 · steps/limit: not positive if it comes long after the limit.
    raw = number(answer["reward"])
    return ActionResult(
        text(answer["observation"]), max(0.0, raw), raw, flag(answer["done"]) or raw != 0
    )


def _sciworld_first(answer: Any) -> str:
    return f"{text(answer['task_description'])}\n{text(answer['observation'])}"


def _sciworld(answer: Any, sent: str) -> ActionResult:
    # −100 means that the agent has focused on a wrong object, which fails the task for good.
    raw = number(answer["score"])
    failed = raw < 0
    done = flag(answer["done"]) or failed
    return ActionResult(text(answer["observation"]), max(0.0, raw / 100), raw, done, failed)


def _alfworld_text(answer: Any) -> str:
    actions = ",".join(text(each) for each in answer["available_actions"])
    return f"{text(answer['observation'])}\nAVAILABLE ACTIONS: {actions}"


def _alfworld_send(action: Action, before: Any) -> str:
    # Newer versions of ALFWorld say `move X to Y` for what recorded trajectories call `put X in/on Y`.
    sent = bare_line(action, before)
    available = before.get("available_actions", [])
    if match := re.fullmatch(r"put (.+) (?:in/on|in|on) (.+)", sent):
        moved = f"move {match[1]} to {match[2]}"
        return moved if sent not in available and moved in available else sent
    return sent


def _alfworld(answer: Any, sent: str) -> ActionResult:
    raw = number(answer["reward"])
    return ActionResult(_alfworld_text(answer), raw, raw, flag(answer["done"]))


def _after_the_rules(recorded: str, first: str) -> str:
    # AgentGym's client writes the rules of the maze above the server's observation, which has one line.
    rules, line, _ = recorded.rpartition("\n")
    return f"{rules}{line}{first}"


def _state(answer: Any, sent: str) -> ActionResult:
    raw = number(answer["reward"])
    return ActionResult(text(answer["state"]), raw, raw, flag(answer["done"]))


def _wordle(answer: Any, sent: str) -> ActionResult:
    # The server adds 1 to the game's −1 for a wrong guess; a guess that is no word may cost more.
    raw = number(answer["reward"])
    return ActionResult(text(answer["observation"]), max(0.0, raw), raw, flag(answer["done"]))


def _searchqa(answer: Any, sent: str) -> ActionResult:
    # The action format puts these tags around what a search found.
    raw = number(answer["reward"])
    shown = re.sub(r"</?information>", "", text(answer["observation"]))
    return ActionResult(shown, raw, raw, flag(answer["done"]))


def _tool(answer: Any, sent: str) -> ActionResult:
    observation, raw = text(answer["observation"]), number(answer["reward"])
    # The agent's own text may be in the observation, and must not make a failure of it.
    fault = next((f for f in _NETWORK_FAILURES if f in observation and f not in sent), "")
    return ActionResult(observation, raw, raw, flag(answer["done"]), fault=fault)


def _webarena(answer: Any, sent: str) -> ActionResult:
    observation = text(answer["observation"])
    done = flag(answer["terminated"]) or flag(answer["truncated"])
    # Only the end of an episode is scored; the reward before it is that of the browser, not of the task.
    raw = number(answer["reward"]) if answer["terminated"] else 0.0
    died = _BROWSER_FAILURES.search(observation) if answer["info"] is None else None
    return ActionResult(observation, raw, raw, done, fault=died[0] if died else "")


def _index(answer: Any) -> int:
    return int(number(answer))


def _tools(name: str, count: int, explained: str, *known: str, repeats: bool = True) -> Environment:
    return Environment(
        name,
        instructions.tools(explained),
        train=range(count - count // 10),
        test=range(count - count // 10, count),
        turns=10,
        key="env_idx",
        create={"id": 0},
        session=_index,
        reset=lambda data: {"id": data},
        first=text,
        send=tool_call,
        outcome=_tool,
        closes=False,
        probe_path="/observation",
        known_actions=tuple(f"Action: {one}" for one in known),
        repeats=repeats,
        sessions=16,
    )


_ROWS = (
    Environment(
        "textcraft",
        instructions.TEXTCRAFT,
        train=range(490),
        test=range(490, 544),
        turns=30,
        format="react_line",
        create={},
        send=lambda action, before: re.sub(r"[^A-Za-z0-9, ]+", "", bare_line(action, before)),
        probe_action="inventory",
        refused=("Could not", "Wrong item format"),
        sessions=256,
    ),
    Environment(
        "babyai",
        instructions.BABYAI,
        train=range(40 * 900),
        test=range(40 * 900, 40 * 1000),
        turns=20,
        format="react_line",
        send=lambda action, before: re.sub(r"[^A-Za-z0-9, ]+", "", bare_line(action, before)),
        outcome=_babyai,
        success=1e-9,
        probe_action="check available actions",
        refused=(
            "The action is not recognized",
            "You cannot",
            "No change in state",
            "There is a bar",
        ),
        sessions=128,
    ),
    Environment(
        "sciworld",
        instructions.SCIWORLD,
        train=range(4175),
        test=range(4175, 4639),
        turns=30,
        send=bare_line,
        first=_sciworld_first,
        outcome=_sciworld,
        probe_path="/goals",
        refused=("No known action matches", "Ambiguous request", "Unknown action"),
        sessions=8,
        known_actions=("look around",),
    ),
    Environment(
        "alfworld",
        instructions.ALFWORLD,
        train=range(2420),
        test=range(2420, 2620),
        turns=50,
        reset=lambda data: {"game": data, "world_type": "Text"},
        first=_alfworld_text,
        send=_alfworld_send,
        outcome=_alfworld,
        closes=False,
        probe_action="look",
        refused=("Nothing happen",),
        sessions=16,
    ),
    Environment(
        "webshop",
        instructions.WEBSHOP,
        train=range(500, 6910),
        test=range(500),
        turns=20,
        key="env_idx",
        session=_index,
        reset=lambda data: {"session_id": data},
        first=lambda answer: text(answer[0]),
        send=bare_line,
        outcome=_state,
        closes=False,
        shares=True,
        sessions=32,
        probe_path="/observation",
        known_actions=("search[shoes]",),
    ),
    Environment(
        "maze",
        instructions.MAZE,
        train=range(24),
        test=range(24, 26),
        turns=50,
        path="/maze",
        reset=lambda data: {"game": data},
        as_recorded=_after_the_rules,
        send=bare_line,
        closes=False,
        probe_path="/maze/observation",
        known_actions=("move up",),
    ),
    Environment(
        "wordle",
        instructions.WORDLE,
        train=range(900_000),
        test=range(900_000, 1_000_000),
        turns=6,
        path="/wordle",
        reset=lambda data: {"seed": data},
        # AgentGym's client shows its own rules in place of the server's observation.
        as_recorded=lambda recorded, first: recorded,
        send=bare_line,
        outcome=_wordle,
        closes=False,
        probe_path="/wordle/observation",
        refused=("invalid word",),
        known_actions=("s h i r e",),
    ),
    Environment(
        "sqlgym",
        instructions.SQLGYM,
        train=range(9428),
        test=range(9428, 10962),
        turns=10,
        key="env_idx",
        session=_index,
        reset=lambda data: {"item_id": data},
        first=lambda answer: text(answer[0]),
        send=select,
        outcome=_state,
        closes=False,
        shares=True,
        sessions=8,
        probe_path="/observation",
        known_actions=("SELECT 1",),
    ),
    Environment(
        "searchqa",
        instructions.SEARCHQA,
        train=range(51713, 221328),
        test=range(51713),
        turns=5,
        key="env_idx",
        create={"id": 0},
        session=_index,
        reset=lambda data: {"id": data},
        first=text,
        format="search_r1",
        tools=(SEARCH,),
        send=search_or_answer,
        outcome=_searchqa,
        probe_path="/observation",
        known_actions=("<search>Paris</search>",),
    ),
    Environment(
        "webarena",
        instructions.WEBARENA,
        train=range(731),
        test=range(731, 812),
        turns=30,
        key="env_idx",
        session=lambda answer: int(number(answer["env_idx"])),
        reset=lambda data: {"seed": 0, "idx": data},
        reset_fault=lambda answer: answer["sites"] == "Error",
        first_path="/observation",
        first=text,
        send=browser_action,
        outcome=_webarena,
        sessions=4,
        probe_path="/observation",
        known_actions=(browser_action(Action(answer="scroll [down]"), None),),
        repeats=False,
    ),
    _tools(
        "weather",
        343,
        instructions.WEATHER,
        # Each of these asks another service, of which one may be away.
        "get_latitude_longitude with Action Input: {'name': 'Shanghai'}",
        f"get_current_temp with Action Input: {_PLACE_AND_DAY}",
        f"get_current_air_quality_index with Action Input: {_PLACE_AND_DAY}",
        "get_elevation with Action Input: {'latitude': 31.2, 'longitude': 121.5}",
    ),
    _tools(
        "movie",
        238,
        instructions.MOVIE,
        "get_search_movie with Action Input: {'movie_name': 'Scream VI'}",
    ),
    _tools("todo", 155, instructions.TODO, "get_projects with Action Input: {}", repeats=False),
    _tools("academia", 19, instructions.ACADEMIA, "loadPaperNet with Action Input: {}"),
    _tools(
        "sheet",
        20,
        instructions.SHEET,
        "open_sheet with Action Input: {'name': 'Sheet1'}",
        repeats=False,
    ),
)
ENVIRONMENTS = {row.name: row for row in _ROWS}
"""The AgentGym environments, by the name in task ids, such as `textcraft`."""
