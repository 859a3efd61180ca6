"""A server that plays the corridor of `FaultyServer` by the protocol of any AgentGym environment.

The forms of the answers are written here after the sources of AgentGym's servers, apart from air's adapters.
The scores are those of the environments: babyai pays less for more steps, sciworld gives points for each part
of the way, and all others pay 1 at the goal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.environment_server import LENGTH, FaultyServer

TOOLS = ("weather", "movie", "todo", "academia", "sheet")
BARE = ("webshop", "sqlgym", "searchqa", *TOOLS)
"""The environments whose session ids are bare numbers."""
LIMIT = 10
"""The number of steps by which babyai divides."""


def written(name: str, move: str) -> str:
    """Returns a move in the corridor (`forward`, `back` or another word) as an agent writes it."""
    if name in TOOLS:
        return f"{move} with Action Input: {{}}"
    return {"sqlgym": f"SELECT '{move}'", "searchqa": f"<search>{move}</search>"}.get(name, move)


class Corridors(FaultyServer):
    """The server of the environment `name`. Its first observations show the ids of the tasks."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.observed: dict[int, str] = {}
        """The latest observation of each session."""

    def answer(self, path: str, body: Mapping[str, Any]) -> Any:
        request = path.rpartition("/")[2]
        if request == "create":
            created = super().answer("/create", {})
            session = created["id"]
            if self.name == "textcraft":
                return created
            whole = {"env_idx" if self.name == "webarena" else "id": session}
            return session if self.name in BARE else whole
        session = body["env_idx"] if "env_idx" in body else body["id"]
        if request in ("observation", "goals"):
            return self.observed[session]
        if request == "filtered_vocab":
            return ["p a n i c", "f e l o n"]
        common = {"id": session}
        if request == "reset":
            names = ("data_idx", "game", "session_id", "item_id", "idx", "seed", "id")
            common["data_idx"] = next(body[each] for each in names if each in body)
        if request == "step":
            moves = [move for move in ("forward", "back") if move in body["action"]]
            common["action"] = moves[0] if moves else "stay"
        answer = super().answer(f"/{request}", common)
        if request == "close" or "error" in answer:
            return answer
        if request == "reset":
            answer["observation"] += f" This is task {common['data_idx']}."
        self.observed[session] = answer["observation"]
        return self._reset(answer) if request == "reset" else self._step(session, answer)

    def _reset(self, answer: dict[str, Any]) -> Any:
        observation = answer["observation"]
        if self.name in ("webshop", "sqlgym"):
            return [observation, None]
        if self.name in ("searchqa", *TOOLS):
            return observation
        more: dict[str, dict[str, Any]] = {
            "babyai": {"score": 0, "deleted": False},
            "sciworld": {"score": 0, "task_description": "Walk.", "task_name": "w", "var_num": 0},
            "alfworld": {"available_actions": ["forward", "back"], "task_type": "walk/x"},
            "webarena": {"sites": ["corridor"], "object": "Walk."},
        }
        return answer | more.get(self.name, {})

    def _step(self, session: int, answer: dict[str, Any]) -> Any:
        observation, reward, done = (answer[key] for key in ("observation", "reward", "done"))
        if self.name in ("webshop", "sqlgym"):
            return {"state": observation, "reward": reward, "done": done, "info": None}
        if self.name == "babyai" and done:
            reward = 1 - 0.9 * self.sessions[session].actions / LIMIT
        more: dict[str, dict[str, Any]] = {
            "babyai": {"reward": reward, "score": reward},
            "sciworld": {"score": round(100 * max(0, self.sessions[session].place) / LENGTH)},
            "alfworld": {"available_actions": ["forward", "back"]},
            "webarena": {"terminated": done, "truncated": False, "info": {}},
        }
        return answer | more.get(self.name, {})
