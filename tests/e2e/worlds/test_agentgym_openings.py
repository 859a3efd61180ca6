"""With `#opening=FILE`, an episode begins with the messages on which AgentGym's trajectories train."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from air.testing import Message, ScriptedServer
from air.train.model import policy as policies
from air.train.model.demonstrations import read_examples, tokenize
from air.trajectories.atif import problems, to_atif
from air.trajectories.conversations import to_sft
from air.worlds.agentgym.environments import ENVIRONMENTS
from tests.e2e.worlds.test_formats import model, only, tokenizer, trained
from tests.e2e.worlds.test_rollouts import rollouts, service
from tests.environment_server import LENGTH
from tests.unit.worlds.agentgym.corridors import Corridors

__all__ = ["model"]

REPLY = "Thought:\nOn.\n\nAction:\nforward"
SHOWN = "Goal: 3 forward. This is task 7."
FIRST = {
    "sciworld": f"Walk.\n{SHOWN}",
    "alfworld": f"{SHOWN}\nAVAILABLE ACTIONS: forward,back",
    "maze": f"Walk to the goal.\nNow walk:\n{SHOWN}",
    "wordle": "Guess the word.\nThe words are:\na b c",
}
"""The first observations as AgentGym's clients show them, where they are not the server's `SHOWN`."""


def recorded(name: str, path: Path, *more: tuple[str, bool | None, str]) -> Path:
    """Writes a file of one trajectory in AgentGym's form, with `more` messages at its end. Returns its
    path."""
    said = [
        ("human", None, f"You play {name}. Reply by a thought and an action."),
        ("gpt", False, "OK. I do that."),
        ("human", None, FIRST.get(name, SHOWN)),
        ("gpt", True, REPLY),
        *more,
    ]
    talk = [{"from": by, "loss": loss, "value": value} for by, loss, value in said]
    path.write_text(json.dumps([{"item_id": f"{name}_7", "conversations": talk}]))
    return path


async def requests(
    url: str, name: str, options: str, **body: Any
) -> tuple[list[list[Message]], Any]:
    """Plays task 7 of a server; returns the messages of each request to the model, and the rollout."""
    seen: list[list[Message]] = []

    def script(conversation: Sequence[Message]) -> str:
        seen.append([dict(message) for message in conversation])
        return REPLY

    with ScriptedServer(script) as model:
        async with service() as client:
            env = f"agentgym:{name}@{url}{options}"
            answer = await rollouts(client, model.url, env, ids=[7], **body)
    (rollout,) = answer["rollouts"]
    return seen, rollout


@pytest.mark.parametrize("name", ENVIRONMENTS)
async def test_an_episode_begins_like_the_recorded_trajectories(name: str, tmp_path: Path) -> None:
    file = recorded(name, tmp_path / "train.json")
    async with Corridors(name).running() as server:
        seen, rollout = await requests(server.url, name, f"#opening={file}", max_round=1)
    (cloned,) = read_examples(file)
    expected = [{"role": one["role"], "content": one["content"]} for one in cloned[:3]]
    assert seen[0] == expected
    (trajectory,) = json.loads(file.read_text())
    assert rollout["conversation"][:3] == trajectory["conversations"][:3]
    assert rollout["conversation"][3]["loss"] is True


async def test_observations_have_no_notes_of_air(tmp_path: Path) -> None:
    file = recorded("textcraft", tmp_path / "train.json")
    async with Corridors("textcraft").running() as server:
        seen, _ = await requests(server.url, "textcraft", f"#opening={file}", max_round=2)
        plain, _ = await requests(server.url, "textcraft", "", max_round=2)
    assert [one["content"] for one in seen[1][3:]] == [REPLY, "place 1"]
    assert [one["role"] for one in plain[0]] == ["system", "user"]
    assert plain[1][-1]["content"] == "place 1\n[1 turns left]"


async def test_training_and_cloning_have_the_same_tokens(model: Path, tmp_path: Path) -> None:
    assert LENGTH == 3
    steps = [("human", None, "place 1"), ("gpt", True, REPLY), ("human", None, "place 2")]
    file = recorded("textcraft", tmp_path / "train.json", *steps, ("gpt", True, REPLY))
    policy, tokens = policies.load(model), tokenizer(model)
    (cloned,) = tokenize(policy.renderer(), tokens, read_examples(file)[0]).examples
    async with Corridors("textcraft").running() as server:
        task = f"agentgym:textcraft:7@{server.url}#opening={file}"
        folder = tmp_path / "trajectories"
        async with trained([REPLY], model, task, "react_line", folder) as (trace, played):
            (branch,) = trace.branches
    assert branch.token_ids == cloned.token_ids
    assert [own for node in branch.nodes for own in node.mask] == cloned.mask
    # What air records is a demonstration with the same tokens.
    assert to_sft([only(folder)], tmp_path / "demos.jsonl") == 1
    (again,) = read_examples(tmp_path / "demos.jsonl")
    assert tokenize(policy.renderer(), tokens, again).examples == [cloned]
    document = to_atif(played)
    assert problems(document) == []
    assert [one["source"] for one in document["steps"][:4]] == ["user", "agent", "user", "agent"]
