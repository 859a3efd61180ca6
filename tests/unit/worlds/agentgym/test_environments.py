"""What each adapter sends, and what it makes of the answers.

The answers have the form that the servers of AgentGym give; those of textcraft, babyai and sciworld were
recorded, the others follow the servers' sources.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from air.actions.base import Action, ToolCall
from air.errors import ConfigError, InfrastructureError, MissingError, UsageError
from air.worlds import sources
from air.worlds.agentgym.environment import Environment, Unsendable
from air.worlds.agentgym.environments import ENVIRONMENTS
from air.worlds.agentgym.world import AgentGymWorld, data_id
from tests.environment_server import FaultyServer


class Scripted(FaultyServer):
    """A server that gives fixed answers, by path, and keeps the requests."""

    def __init__(self, **answers: Any) -> None:
        super().__init__()
        self.answers, self.bodies = answers, []  # type: ignore[var-annotated]

    def answer(self, path: str, body: Mapping[str, Any]) -> Any:
        self.bodies.append((path, dict(body)))
        last = path.rpartition("/")[2]
        answer = self.answers[last]
        return answer.pop(0) if last == "step" else answer


async def played(name: str, actions: list[str], **answers: Any) -> tuple[Scripted, list[Any], Any]:
    """Plays actions; returns the server, the first observation with the steps, and the facts."""
    server = Scripted(**answers)
    async with server.running():
        world = AgentGymWorld(ENVIRONMENTS[name], server.url, range(7, 8))
        try:
            shown: list[Any] = [(await world.reset(0)).text]
            shown += [await world.step(Action(answer=action)) for action in actions]
            return server, shown, world.facts()
        finally:
            await world.close()


async def test_babyai_ends_at_the_first_reward() -> None:
    """The server says that a success is not the end if it came late, and counts it again afterwards."""
    server, (first, step), facts = await played(
        "babyai",
        ["go to: red ball 1!"],
        create={"id": 3},
        reset={
            "observation": "Your goal: x",
            "reward": 0,
            "score": 0,
            "deleted": False,
            "done": False,
        },
        step=[{"observation": "done", "reward": 0.28, "score": 0.28, "done": False}],
        close=True,
    )
    assert first == "Your goal: x"
    assert (step.reward, step.done) == (0.28, True)
    assert facts["success"] == 1
    assert server.bodies == [
        ("/create", {}),
        ("/reset", {"id": 3, "data_idx": 7}),
        ("/step", {"id": 3, "action": "go to red ball 1"}),
        ("/close", {"id": 3}),
    ]


def sci(score: float, done: bool = False) -> dict[str, Any]:
    return {"observation": "o", "reward": 1, "score": score, "done": done}


async def test_sciworld_pays_the_growth_of_the_score_and_takes_all_back_at_a_wrong_focus() -> None:
    start = {
        "task_name": "boil",
        "var_num": 0,
        "task_description": "Boil.",
        "deleted": False,
    } | sci(0)
    answers = {"create": {"id": 0}, "reset": start, "close": True}
    _, (first, *steps), facts = await played(
        "sciworld", ["a", "b", "c"], step=[sci(3), sci(33), sci(-100)], **answers
    )
    assert first == "Boil.\no"
    assert [step.reward for step in steps] == pytest.approx([0.03, 0.3, -0.33])
    assert steps[-1].done
    assert facts["best_score"] == facts["success"] == 0
    assert facts["raw_score"] == -100
    _, (_, step), facts = await played("sciworld", ["a"], step=[sci(100, True)], **answers)
    assert step.reward == facts["success"] == 1


async def test_alfworld_lists_the_actions_and_knows_both_words_for_put() -> None:
    def seen(*actions: str, **more: Any) -> dict[str, Any]:
        return {"observation": "a room", "available_actions": list(actions), **more}

    server, (first, *steps), _ = await played(
        "alfworld",
        ["put mug 1 in/on desk 1", "put mug 1 in/on desk 1"],
        create={"id": 1},
        reset=seen("look", "move mug 1 to desk 1", id=1, task_type="pick/x"),
        step=[
            seen("look", "put mug 1 in/on desk 1", reward=0.0, done=False),
            seen("look", reward=1.0, done=True),
        ],
    )
    assert first == "a room\nAVAILABLE ACTIONS: look,move mug 1 to desk 1"
    assert [step.reward for step in steps] == [0, 1]
    assert server.bodies[1] == ("/reset", {"id": 1, "game": 7, "world_type": "Text"})
    sent = [body["action"] for path, body in server.bodies if path == "/step"]
    assert sent == ["move mug 1 to desk 1", "put mug 1 in/on desk 1"]
    assert server.bodies[-1][0] == "/step"  # it has no close


async def test_webshop_and_sqlgym_have_bare_ids() -> None:
    server, (first, step), facts = await played(
        "webshop",
        ["click[Buy Now]"],
        create=48,
        reset=["Search page", None],
        step=[{"state": "Thanks", "reward": 0.5, "done": True, "info": None}],
    )
    assert (first, step.reward, step.done) == ("Search page", 0.5, True)
    assert facts["success"] == 0
    assert server.bodies[1:] == [
        ("/reset", {"env_idx": 48, "session_id": 7}),
        ("/step", {"env_idx": 48, "action": "click[Buy Now]"}),
    ]
    server, (_, *steps), _ = await played(
        "sqlgym",
        ["DROP TABLE t", "```sql\nSELECT 1\n```"],
        create=5,
        reset=["Tables", None],
        step=[{"state": "[(1,)]", "reward": 1.0, "done": True, "info": {}}],
    )
    assert "SELECT" in steps[0].observation.text
    sent = [body for path, body in server.bodies if path == "/step"]
    assert sent == [{"env_idx": 5, "action": "SELECT 1"}]


async def test_maze_and_wordle_live_below_a_path() -> None:
    server, (_, step), _ = await played(
        "maze",
        ["Move up\nbecause"],
        create={"id": 0},
        reset={"observation": "The goal is at position 8, 6."},
        step=[{"observation": "Success", "reward": 1.0, "done": True}],
    )
    assert step.done
    assert server.bodies[1:] == [
        ("/maze/reset", {"id": 0, "game": 7}),
        ("/maze/step", {"id": 0, "action": "Move up"}),
    ]
    _, (_, *steps), facts = await played(
        "wordle",
        ["s h i r e", "x", "f l a k y"],
        create={"id": 0},
        reset={"id": 0, "observation": "Let's start Wordle!"},
        step=[
            {"observation": "b b b b b", "reward": 0, "done": False},
            {"observation": "invalid word", "reward": -3, "done": False},
            {"observation": "g g g g g", "reward": 1, "done": True},
        ],
    )
    assert [step.reward for step in steps] == [0, 0, 1]
    assert facts["action_is_valid"] == pytest.approx(2 / 3)


async def test_searchqa_takes_tags_or_a_tool() -> None:
    send = ENVIRONMENTS["searchqa"].send
    assert send(Action(answer="<search> a </search>"), None) == "<search>a</search>"
    assert send(Action(answer="Paris"), None) == "<answer>Paris</answer>"
    query = ToolCall("search", arguments={"query": "capital</search><answer>x"})
    assert send(Action(tool=query), None) == "<search>capital  x</search>"


TRIAL = {"create": 4, "reset": "The goal. Now new trial starts."}
"""The answers with which an episode with tools begins."""


def found(observation: str, reward: float = 0.0, done: bool = False) -> dict[str, Any]:
    return {"observation": observation, "reward": reward, "done": done}


async def test_an_episode_of_searchqa() -> None:
    server, (first, *steps), facts = await played(
        "searchqa",
        ["<search>capital of France</search>", "<answer>Paris</answer>"],
        create=4,
        reset="What is the capital of France?",
        step=[found("\n<information>Paris is …</information>\n"), found("", 1.0, True)],
        close=True,
    )
    assert first == "What is the capital of France?"
    # The action format puts the tags around what was found.
    assert steps[0].observation.text.strip() == "Paris is …"
    assert [(step.reward, step.done) for step in steps] == [(0, False), (1, True)]
    assert facts["success"] == 1
    assert server.bodies == [
        ("/create", {"id": 0}),
        ("/reset", {"env_idx": 4, "id": 7}),
        ("/step", {"env_idx": 4, "action": "<search>capital of France</search>"}),
        ("/step", {"env_idx": 4, "action": "<answer>Paris</answer>"}),
        ("/close", {"env_idx": 4}),
    ]


@pytest.mark.parametrize(
    ("name", "call", "sent"),
    [
        (
            "weather",
            'get_elevation with Action Input: {"latitude": 31.2, "longitude": 121.5}',
            "get_elevation with Action Input: {'latitude': 31.2, 'longitude': 121.5}",
        ),
        (
            "todo",
            'get_tasks with Action Input: {"project_id": "12345"}',
            "get_tasks with Action Input: {'project_id': '12345'}",
        ),
        (
            "academia",
            "loadPaperNet with Action Input: {}",
            "loadPaperNet with Action Input: {}",
        ),
        (
            "sheet",
            'open_sheet with Action Input: {"name": "Sheet1"}',
            "open_sheet with Action Input: {'name': 'Sheet1'}",
        ),
    ],
)
async def test_an_episode_with_tools(name: str, call: str, sent: str) -> None:
    """A call, an action that is no call and is not sent, and the end with a part of the reward."""
    finish = 'finish with Action Input: {"answer": "12"}'
    server, (first, *steps), facts = await played(
        name,
        [call, "I think it is 12.", finish],
        step=[found("Observation: 12"), found("You have finished.", 0.5, True)],
        **TRIAL,
    )
    assert first == TRIAL["reset"]
    assert steps[0].observation.text == "Observation: 12"
    assert "not the call of a tool" in steps[1].observation.text
    assert [(step.reward, step.done) for step in steps] == [(0, False), (0, False), (0.5, True)]
    assert (facts["success"], facts["best_score"], facts["num_actions"]) == (0, 0.5, 3)
    assert server.bodies == [
        ("/create", {"id": 0}),
        ("/reset", {"env_idx": 4, "id": 7}),
        ("/step", {"env_idx": 4, "action": f"Action: {sent}"}),
        ("/step", {"env_idx": 4, "action": "Action: finish with Action Input: {'answer': '12'}"}),
    ]  # these servers have no request that closes a session


async def test_webarena_scores_only_the_end() -> None:
    page = {"observation": "OBSERVATION: page", "terminated": False, "truncated": False, "info": {}}
    server, (first, *steps), _ = await played(
        "webarena",
        ["click [12]", "```stop [42]```"],
        create={"env_idx": 2},
        reset={"observation": "tree", "sites": ["shop"], "object": "Buy"},
        observation="OBJECTIVE: Buy",
        step=[page | {"reward": 0.5}, page | {"reward": 1.0, "terminated": True}],
        close={"closed": "closed"},
    )
    assert first == "OBJECTIVE: Buy"
    assert [step.reward for step in steps] == [0, 1]
    sent = [body["action"] for path, body in server.bodies if path == "/step"]
    assert sent[0] == "In summary, the next action I will perform is ```click [12]```"
    assert sent[1].endswith("```stop [42]```")


@pytest.mark.parametrize(
    "text", ["Env 2 is dead", "Target page, context or browser has been closed"]
)
async def test_a_dead_browser_is_a_failure(text: str) -> None:
    dead = {"observation": text, "reward": 0, "terminated": False, "truncated": False, "info": None}
    answers = {"create": {"env_idx": 2}, "observation": "o", "close": {}}
    begun = {"reset": {"observation": "t", "sites": []}, **answers}
    with pytest.raises(InfrastructureError, match="server failed"):
        await played("webarena", ["x"], step=[dead, dead], **begun)
    # Another browser of the same server is well: the agent has ended its own.
    well = {"observation": "o", "reward": 0, "terminated": False, "truncated": False, "info": {}}
    server, (_, step), _ = await played("webarena", ["x"], step=[dead, well], **begun)
    assert (step.reward, step.done) == (0, True)
    assert [path for path, _ in server.bodies].count("/create") == 2
    with pytest.raises(InfrastructureError, match="could not start"):
        await played(
            "webarena", [], reset={"observation": "TimeoutError", "sites": "Error"}, **answers
        )


async def test_tools_that_cannot_reach_their_service_are_a_failure() -> None:
    down = "Observation: ERROR | ConnectionError(HTTPSConnectionPool(host='x'): refused"
    answer = {"observation": down, "reward": 0.0, "done": False}
    common = {"create": 4, "reset": "Now new trial starts."}
    call = 'get_movie_details with Action Input: {"movie_id": "1"}'
    # The service fails at what the agent did not choose, too.
    with pytest.raises(InfrastructureError, match="HTTPSConnectionPool"):
        await played("movie", [call], step=[answer] * 4, **common)
    well = answer | {"observation": "Observation: []"}
    _, (_, step), _ = await played("movie", [call], step=[answer] * 3 + [well], **common)
    assert (step.reward, step.done) == (0, True)
    # The agent may not make a failure of its own words.
    quoted = 'finish with Action Input: {"answer": "HTTPSConnectionPool("}'
    _, (_, step), _ = await played("movie", [quoted], step=[answer | {"done": True}], **common)
    assert step.done


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), 1.5, -0.5, "1", None, True])
async def test_a_reward_that_cannot_be_is_a_failure(reward: Any) -> None:
    start = {"id": 0, "observation": "o", "reward": 0, "done": False}
    with pytest.raises(InfrastructureError):
        await played(
            "textcraft",
            ["x"],
            create={"id": 0},
            reset=start,
            step=[start | {"reward": reward}],
            close=True,
        )


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ('get_x with Action Input: {"a": true, "b": null}', "{'a': True, 'b': None}"),
        ("Action: get_x with Action Input: {'a': 'b\\nc'}", "{'a': 'b\\nc'}"),
        ("get_x with Action Input: {}", "{}"),
    ],
)
def test_a_tools_input_is_written_anew(written: str, sent: str) -> None:
    send = ENVIRONMENTS["weather"].send
    assert send(Action(answer=written), None) == f"Action: get_x with Action Input: {sent}"


@pytest.mark.parametrize(
    "written",
    [
        "x with Action Input: __import__('os').system('true')",
        "x with Action Input: {'a': __import__('os').system('true')}",
        "x with Action Input: {'a': [self.env for self in []]}",
        "x with Action Input: " + "{'a':" * 30 + "1" + "}" * 30,
        "x with Action Input: " + "[" * 100_000,
        "x with Action Input: {'a': 1e999}",
        'x with Action Input: {"a": NaN}',
        "x with Action Input: 'text'",
        "x'; y with Action Input: {}",
        "x with Action Input: {}\nAction: y with Action Input: {}",
        "finish(1)",
        "",
    ],
)
def test_what_a_tool_server_would_evaluate_is_not_sent(written: str) -> None:
    """The servers of the tool environments give an action's input to Python's `eval`."""
    with pytest.raises(Unsendable):
        ENVIRONMENTS["weather"].send(Action(answer=written), None)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT `release` FROM t WHERE a = 'insert; into' -- delete",
        "WITH x AS (SELECT 1) SELECT replace(a, 'b', 'c') FROM x;",
        'select "update" from [delete]',
    ],
)
def test_queries_that_read_are_sent(query: str) -> None:
    assert ENVIRONMENTS["sqlgym"].send(Action(answer=query), None) == query.rstrip(";")


@pytest.mark.parametrize(
    "query",
    [
        "DROP TABLE t",
        "SELECT 1; DELETE FROM t",
        "WITH x AS (SELECT 1) DELETE FROM t",
        "WITH x AS (SELECT 1) REPLACE  INTO t VALUES (1)",
        "ATTACH DATABASE '/tmp/x' AS y",
        "PRAGMA writable_schema = 1",
        "-- select\nUPDATE t SET a = 1",
        "/* select */ INSERT INTO t VALUES (1)",
        "",
    ],
)
def test_queries_that_change_the_shared_data_are_not_sent(query: str) -> None:
    with pytest.raises(Unsendable):
        ENVIRONMENTS["sqlgym"].send(Action(answer=query), None)


def test_training_and_validation_have_different_tasks() -> None:
    for environment in ENVIRONMENTS.values():
        train = {data_id(environment, seed, None) for seed in range(2000)}
        held_out = {data_id(environment, seed, None) for seed in range(1_000_123, 1_002_123)}
        assert not train & held_out, environment.name
        assert train <= set(environment.train)
        assert held_out <= set(environment.test)
        assert not set(environment.train) & set(environment.test)


def test_a_task_names_its_server_and_its_ids() -> None:
    task = sources.load("agentgym:textcraft:17@http://h:1/env/")
    world = task.world()
    assert isinstance(world, AgentGymWorld)
    assert world.url == "http://h:1/env"
    assert task.format == "react_line"
    other = sources.load("agentgym:textcraft:18@http://h:1/env/")
    assert other.digest != task.digest
    for name, environment in ENVIRONMENTS.items():
        assert len(environment.instructions) > 100, name
        assert sources.load(f"agentgym:{name}@https://h").max_turns == environment.turns


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("textcraft", ConfigError),
        ("textcraft@", ConfigError),
        ("textcraft@h:1", ConfigError),
        ("textcraft@ftp://h", ConfigError),
        ("textcraft@http://u:p@h", ConfigError),
        ("textcraft:544@http://h", ConfigError),
        ("textcraft:5-3@http://h", ConfigError),
        ("textcraft:all@http://h", ConfigError),
        ("craft@http://h", MissingError),
    ],
)
def test_a_bad_name_gets_one_line(name: str, kind: type[UsageError]) -> None:
    with pytest.raises(kind) as caught:
        sources.load(f"agentgym:{name}")
    assert f"agentgym:{name}" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_every_environment_can_show_that_it_is_well(name: str) -> None:
    environment = ENVIRONMENTS[name]
    assert environment.probe_action or environment.probe_path
    assert all(environment.known)


@pytest.mark.parametrize("left", [{}, {"probe_path": "/observation"}, {"known_actions": ("look",)}])
def test_an_environment_that_cannot_show_that_it_is_well_is_refused(left: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"AgentGym environment e: has neither .* nor `probe_act"):
        Environment("e", "Do.", range(1), range(1), 5, **left)


def test_the_known_actions_of_weather_ask_each_of_its_services() -> None:
    names = [re.split(r"[: ]+", known)[1] for known in ENVIRONMENTS["weather"].known]
    assert names == [
        "get_latitude_longitude",
        "get_current_temp",
        "get_current_air_quality_index",
        "get_elevation",
    ]


def trajectory(*said: tuple[str, bool | None, str]) -> dict[str, Any]:
    talk = [{"from": by, "loss": loss, "value": value} for by, loss, value in said]
    return {"item_id": "textcraft_0", "conversations": talk}


BEGIN = (("human", None, "Craft."), ("gpt", False, "OK."), ("human", None, "Goal: craft stick."))


def test_the_opening_is_part_of_a_task(tmp_path: Path) -> None:
    file = tmp_path / "train.json"
    plain = sources.load("agentgym:textcraft@http://h")
    assert plain.opening is None
    digests = {plain.digest}
    for reply in ("OK.", "Yes."):
        said = (BEGIN[0], ("gpt", False, reply), BEGIN[2])
        file.write_text(json.dumps([trajectory(*said)] * 2))
        task = sources.load(f"agentgym:textcraft@http://h#opening={file}")
        assert (task.instructions, task.opening) == ("Craft.", ("Craft.", reply))
        digests.add(task.digest)
    assert len(digests) == 3
    with pytest.raises(MissingError, match="no file"):
        sources.load(f"agentgym:textcraft@http://h#opening={tmp_path / 'none.json'}")
    with pytest.raises(ConfigError, match="#opening=FILE"):
        sources.load("agentgym:textcraft@http://h#open=x")


@pytest.mark.parametrize("name", ["train.json", "train.jsonl"])
def test_a_file_that_is_nested_too_deeply_is_refused(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text("[" * 100_000)
    with pytest.raises(ConfigError, match=f"{name}:1: not JSON"):
        sources.load(f"agentgym:textcraft@http://h#opening={file}")


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ([], "0 different openings"),
        ([trajectory(*BEGIN), trajectory(("human", None, "Walk."), *BEGIN[1:])], "2 different"),
        ([trajectory(*BEGIN), trajectory(*BEGIN[:2])], r"train\.json\[1\] does not begin"),
        ([trajectory(BEGIN[0], ("gpt", True, "OK."), BEGIN[2])], "does not begin"),
        ([{"item_id": "textcraft_0", "conversations": None}], "no trajectory of AgentGym"),
    ],
)
def test_a_file_without_one_opening_is_refused(
    entries: list[Any], text: str, tmp_path: Path
) -> None:
    file = tmp_path / "train.json"
    file.write_text(json.dumps(entries))
    with pytest.raises(ConfigError, match=text):
        sources.load(f"agentgym:textcraft@http://h#opening={file}")
