"""A world of rows conforms, checks answers, counts calls, and hides what only the checker may see."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from air.actions import Action, Message, ToolCall
from air.errors import ConfigError, InfrastructureError, MissingError, RewardTermError
from air.worlds import conformance, sources
from air.worlds.base import Step
from air.worlds.rows.world import thought_of
from air.worlds.sources import VALIDATION_SEED, WorldTask

CHECKS = """
from air.errors import InfrastructureError

seen = []

def check(prediction, answer, **given):
    raise AssertionError

def exact(prediction: str, answer: str, tool_calls: int):
    return {"reward": float(prediction.strip() == answer), "calls": float(tool_calls)}

def everything(prediction, response, tool_calls, turns, thoughts, question, answer):
    return {"reward": 1.0, "turns_of": turns, "thoughts": len([t for t in thoughts if t]),
            "whole": float("</think>" in response)}

def raises(prediction, answer):
    raise ValueError("my bug")

def away(prediction, answer):
    raise InfrastructureError("the judge is away")
"""
TOOLS = '''
import json

from air.errors import InfrastructureError
from air.tools import ToolContext, finish, tool

class Notes:
    open = 0

    def __init__(self, context: ToolContext):
        self.fields, self.lines = dict(context.fields), []
        Notes.open += 1

    def close(self):
        Notes.open -= 1

@tool(state=Notes)
def note(notes, text: str) -> str:
    """Writes a line.

    Args:
        text: the line
    """
    notes.lines.append(text)
    return f"{len(notes.lines)} {sorted(notes.fields)}"

@tool
def give_up() -> str:
    """Gives up."""
    return finish("I give up", prediction="")

@tool
def decide(answer: str) -> str:
    """Answers.

    Args:
        answer: the answer
    """
    return finish(answer)

@tool
def fetch(page: str):
    """Reads JSON.

    Args:
        page: the JSON
    """
    return json.loads(page)

@tool(status="finish")
def conclude(answer: str) -> dict:
    """Answers, as a tool of AgentFly does.

    Args:
        answer: the answer
    """
    return {"observation": answer, "length": len(answer)}

@tool
def broken() -> str:
    """Asks a server."""
    raise InfrastructureError("the server is away")
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rows = [
        {"question": f"Say the {number}th word.", "answer": f"secret{number}", "hint": f"h{number}"}
        for number in range(60)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "checks.py").write_text(CHECKS)
    (tmp_path / "tools.py").write_text(TOOLS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


NAMES = ("note", "give_up", "decide", "fetch", "conclude", "broken")


def load(
    folder: Path, checker: str = "exact", *, tools: Sequence[str] = NAMES, **keys: Any
) -> WorldTask:
    table = {
        "data": "rows.jsonl",
        "checker": f"checks.py:{checker}",
        "tools": [f"tools.py:{name}" for name in tools],
        **keys,
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in table.items()]
    (folder / "task.toml").write_text("\n".join(lines))
    return sources.load(f"rows:{folder / 'task.toml'}")


def said(answer: str, message: Message | None = None) -> Action:
    return Action(answer=answer, message=message)


def called(name: str, **arguments: Any) -> Action:
    return Action(tool=ToolCall(name, arguments=arguments))


async def play(
    task: WorldTask, *actions: Action, seed: int = 0
) -> tuple[list[Step], dict[str, float], str]:
    world = task.world()
    first = await world.reset(seed)
    try:
        return [await world.step(action) for action in actions], dict(world.facts()), first.text
    finally:
        await world.close()


def answer_of(question: str) -> str:
    return "secret" + "".join(re.findall(r"\d+", question))


async def question_of(task: WorldTask, seed: int) -> str:
    return (await play(task, seed=seed))[2]


async def test_a_right_answer_earns_and_a_wrong_one_does_not(folder: Path) -> None:
    task = load(folder, metrics=["calls"])
    right = answer_of(await question_of(task, 3))
    (step,), facts, _ = await play(task, said(right), seed=3)
    assert (step.done, step.reward) == (True, 1.0)
    assert facts["success"] == facts["answered"] == 1
    (step,), facts, _ = await play(task, said("secret"), seed=3)
    assert (step.done, step.reward, facts["success"], facts["answered"]) == (True, 0.0, 0, 1)
    _, facts, _ = await play(task, called("note", text="a"), seed=3)
    assert (facts["success"], facts["answered"], facts["calls_note"]) == (0, 0, 1)


async def test_calls_are_answered_and_counted_and_one_that_fails_is_no_use(folder: Path) -> None:
    task = load(folder, metrics=["calls"], public=["hint"])
    steps, facts, _ = await play(
        task,
        called("note", text="a"),
        called("note"),
        called("fly"),
        called("note", text="b"),
        said("x"),
    )
    shown = [step.observation.text for step in steps]
    assert shown[0] == "1 ['hint', 'question']"
    assert shown[3] == "2 ['hint', 'question']"
    assert "text is missing" in shown[1]
    assert "no tool 'fly'" in shown[2]
    assert (facts["tool_calls"], facts["tool_errors"], facts["calls_note"]) == (3, 2, 3)
    assert facts["answer_calls"] == 2  # what the checker was told
    assert facts["calls_decide"] == 0


async def test_a_tool_may_finish_the_episode(folder: Path) -> None:
    task = load(folder, metrics=["calls"])
    right = answer_of(await question_of(task, 5))
    (step,), facts, _ = await play(task, called("decide", answer=right), seed=5)
    assert (step.done, step.reward, facts["success"]) == (True, 1.0, 1)
    assert facts["answer_calls"] == 0  # to answer by a tool is no use of a tool
    (step, after), facts, _ = await play(task, called("give_up"), said("x"), seed=5)
    assert (step.done, step.reward, facts["answered"]) == (True, 0.0, 1)
    assert (after.done, after.reward) == (True, 0.0)


async def test_the_output_of_a_call_that_submits_is_the_answer(folder: Path) -> None:
    task = load(folder)
    submits = dataclasses.replace(called("note", text="a"), ending="submit")
    (step,), facts, _ = await play(task, submits)
    assert (step.done, facts["answered"]) == (True, 1)


async def test_a_tool_whose_every_call_answers(folder: Path) -> None:
    task = load(folder, metrics=["calls"])
    right = answer_of(await question_of(task, 5))
    (wrong, step), facts, _ = await play(
        task, called("conclude"), called("conclude", answer=right), seed=5
    )
    assert not wrong.done
    assert (step.done, step.reward, facts["success"]) == (True, 1.0, 1)
    assert facts["answer_calls"] == 0


async def test_json_that_the_agent_chose_does_not_set_the_answer(folder: Path) -> None:
    """Neither in an ordinary call nor in a call that submits."""
    task = load(folder)
    right = answer_of(await question_of(task, 5))
    page = {"observation": "seen", "prediction": right}
    for more in ({}, {"status": "finish"}):
        fetch = called("fetch", page=json.dumps(page | more))
        (step,), facts, _ = await play(task, fetch, seed=5)
        assert (step.done, facts["answered"], facts["tool_errors"]) == (False, 0, 1)
        submits = dataclasses.replace(fetch, ending="submit")
        (step,), facts, _ = await play(task, submits, seed=5)
        assert (step.done, step.reward, facts["success"]) == (True, 0.0, 0)


async def test_the_answer_is_seen_by_the_checker_alone(folder: Path) -> None:
    task = load(folder)
    steps, facts, first = await play(task, called("note", text="a"), said("x"))
    shown = [first, task.instructions, json.dumps(task.tools), str(facts), str(task.facts)]
    shown += [step.observation.text for step in steps]
    assert not [text for text in shown if "secret" in text]
    with pytest.raises(ConfigError, match="`public` names `answer`, which is never public"):
        load(folder, public=["answer"])


async def test_evaluations_ask_rows_that_training_never_asks(folder: Path) -> None:
    task = load(folder)
    training = {await question_of(task, seed) for seed in range(60)}
    held_out = {await question_of(task, VALIDATION_SEED + number) for number in range(60)}
    assert len(training | held_out) == 60
    assert not training & held_out


async def test_the_checker_is_given_the_whole_episode(folder: Path) -> None:
    metrics = ["turns_of", "thoughts", "whole"]
    task = load(folder, "everything", metrics=metrics)
    message = Message("It is x.", reasoning="I think so.")
    _, facts, _ = await play(task, called("note", text="a"), said("x", message))
    assert [facts[f"answer_{name}"] for name in metrics] == [2, 1, 1]


async def test_failures_of_checkers_and_tools(folder: Path) -> None:
    with pytest.raises(RewardTermError, match="my bug"):
        await play(load(folder, "raises"), said("x"))
    with pytest.raises(InfrastructureError, match="the judge is away"):
        await play(load(folder, "away"), said("x"))
    with pytest.raises(InfrastructureError, match="the server is away"):
        await play(load(folder), called("broken"))


@pytest.mark.parametrize("tools", [(), ("note", "decide")])
async def test_a_world_of_rows_conforms(folder: Path, tools: tuple[str, ...]) -> None:
    task = load(folder, tools=tools, metrics=["calls"])
    assert await conformance.check(task, [said("secret1"), *[called("note", text="a")] * 3]) == {}


async def test_the_states_of_tools_are_released(folder: Path) -> None:
    from air.tools import load as load_tools

    task = load(folder)
    (note,) = load_tools("tools.py:note", folder)
    assert note.state is not None
    world = task.world()
    await world.reset(1)
    await world.reset(2)
    assert note.state.open == 1  # type: ignore[attr-defined]
    await world.close()
    await world.close()
    assert note.state.open == 0  # type: ignore[attr-defined]


def test_the_defaults_follow_from_the_tools(folder: Path) -> None:
    with_tools, without = load(folder), load(folder, tools=())
    assert (with_tools.format, with_tools.max_turns, with_tools.answers) == ("tool_calls", 8, True)
    assert (without.format, without.max_turns) == ("think_answer", 1)
    assert [tool["function"]["name"] for tool in with_tools.tools] == list(NAMES)


def test_the_digest_follows_data_tools_and_settings_but_not_the_place(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    digests = {
        load(folder).digest,
        load(folder, success_at=0.5).digest,
        load(folder, tools=()).digest,
    }
    assert len(digests) == 3
    other = tmp_path_factory.mktemp("other")
    for file in ("rows.jsonl", "checks.py", "tools.py"):
        (other / file).write_text((folder / file).read_text())
    assert load(other).digest == load(folder).digest
    (other / "checks.py").write_text(CHECKS + "\n# A comment.\n")
    assert load(other).digest == load(folder).digest
    (other / "checks.py").write_text(CHECKS + "\nLIMIT = 1\n")
    assert load(other).digest != load(folder).digest
    (other / "checks.py").write_text(CHECKS)
    with (other / "rows.jsonl").open("a") as file:
        file.write('{"question": "New?", "answer": "secret", "hint": ""}\n')
    assert load(other).digest != load(folder).digest


def short(options: str) -> WorldTask:
    return sources.load(f"rows:rows.jsonl#{options}")


def test_the_short_form(folder: Path) -> None:
    task = short("checker=checks.py:exact&tools=tools.py:note,calculator&turns=4&split=train")
    assert [tool["function"]["name"] for tool in task.tools] == ["note", "calculator"]
    assert task.max_turns == 4
    over = sources.load(f"{load(folder).id}#turns=3&where.hint=h1,h2,h3&split=all")
    assert over.max_turns == 3


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ("", ConfigError, "`checker` is missing — add #checker=NAME"),
        ("checker", ConfigError, "'checker' is malformed — write KEY=VALUE"),
        ("checker=a&checker=b", ConfigError, "`checker` is named twice"),
        ("checker=no_such", MissingError, "there is no such checker"),
        ("checker=checks.py:exact&turn=4", ConfigError, "there is no key `turn` — did you mean `turns`"),
        ("checker=checks.py:exact&turns=0", ConfigError, "`turns`"),
        ("checker=checks.py:exact&tools=fly", MissingError, "there is no tool 'fly'"),
        ("checker=checks.py:exact&data=a.json", ConfigError, "`data` is the path before the #"),
        ("checker=checks.py:exact&where.hint=no", ConfigError, "no row is left for train"),
        ("checker=checks.py:exact&where.level=1", ConfigError, r"rows.jsonl:1: the row has no field `level`"),
        ("checker=checks.py:exact&public=fen", ConfigError, r"rows.jsonl:\d+: the row has no field `fen`"),
        ("checker=checks.py:exact&splits.share=2", ConfigError, "splits.share"),
        ("checker=checks.py:exact&format=nope", ConfigError, "nope: format: no action format"),
        ("checker=checks.py:exact&format=air.errors:AirError", ConfigError, "AirError: format: 'air.err"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_named(
    folder: Path, options: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        short(options)


def test_an_action_format_that_does_not_exist_is_named_with_its_file(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"task\.toml: format: no action format named 'nope'"):
        load(folder, format="nope")
    assert load(folder, format="react").format == "react"


def test_a_row_without_what_the_checker_needs_is_refused(folder: Path) -> None:
    with (folder / "rows.jsonl").open("a") as file:
        file.write('{"question": "And?"}\n')
    with pytest.raises(ConfigError, match=r"rows.jsonl:61: the row has no field `answer`"):
        load(folder)


def test_a_path_of_another_kind_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"its name must end in .json, .jsonl, .parquet, .toml"):
        sources.load("rows:rows.csv#checker=checks.py:exact")
    with pytest.raises(ConfigError, match="the path is missing"):
        sources.load("rows:")
    with pytest.raises(MissingError, match="no such file"):
        sources.load("rows:no.toml")


def test_a_file_for_each_split(folder: Path) -> None:
    (folder / "held.jsonl").write_text('{"question": "Held?", "answer": "secret", "hint": ""}\n')
    table = 'checker = "checks.py:exact"\n[data]\ntrain = "rows.jsonl"\nvalidation = "held.jsonl"\n'
    (folder / "two.toml").write_text(table)
    assert sources.load("rows:two.toml").max_turns == 1
    (folder / "two.toml").write_text(table + "[splits]\nshare = 0.5\n")
    with pytest.raises(ConfigError, match="`data` has a file for each split"):
        sources.load("rows:two.toml")


@pytest.mark.parametrize(
    ("message", "thought"),
    [
        (None, ""),
        (Message("x", reasoning=" a "), "a"),
        (Message("<think>a</think>x"), "a"),
        (Message("a</think>x"), "a"),
        (Message('a\n<tool_call>{"name": "x"}</tool_call>'), "a"),
        (Message("Thought: a\nAction: x"), "a"),
        (Message("x"), ""),
    ],
)
def test_the_thought_of_a_message(message: Message | None, thought: str) -> None:
    assert thought_of(message) == thought


@pytest.mark.parametrize(
    ("actions", "reward"),
    [
        ([called("chess_move", move="Ra8#")], 1.0),
        ([said("win")], -1.0),
        ([said("win, draw or loss")], -1.0),
        ([called("decide", answer="win")], -1.0),
        ([called("chess_move", move="Ra7"), said("win")], -1.0),
    ],
)
async def test_the_outcome_of_a_game_comes_from_the_board(
    actions: list[Action], reward: float, folder: Path
) -> None:
    (folder / "chess_checks.py").write_text(
        "from air.rewards.answers import pays\n\n@pays(lowest=-1)\n"
        "def won(prediction):\n    return {'win': 1, 'draw': 0, 'loss': -1}[prediction]\n"
    )
    fen = "6k1/5ppp/8/8/8/8/8/R3K3 w - - 0 1"
    (folder / "chess.toml").write_text(
        'data = "rows.jsonl"\nchecker = "chess_checks.py:won"\n'
        f'tools = [{{ name = "chess", fen = "{fen}" }}, "tools.py:decide"]\n'
    )
    steps, _, _ = await play(sources.load(f"rows:{folder / 'chess.toml'}"), *actions)
    assert (steps[-1].done, steps[-1].reward) == (True, reward)
