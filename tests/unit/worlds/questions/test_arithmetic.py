"""Arithmetic: problems whose answers hold, answers read as people write them, rewards as specified."""

from __future__ import annotations

import ast
import json
import math
import re
import time
from fractions import Fraction
from pathlib import Path

import pytest

from air.actions.base import Action
from air.errors import ConfigError, MissingError
from air.rewards.answers.integers import final_answer, last_integer
from air.worlds.questions import SOURCE
from air.worlds.questions.arithmetic import players
from air.worlds.questions.arithmetic.episode import ArithmeticEpisode
from air.worlds.questions.arithmetic.problems import LEVELS, Problem, from_files, generated
from air.worlds.questions.arithmetic.templates import TEMPLATES
from air.worlds.sources import VALIDATION_SEED


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("42", "42"),
        ("The answer is 42.", "42"),
        ("6 * 7 = 42", "42"),
        ("$1,234,567", "1234567"),
        ("1\u202f234 euros", "1234"),
        ("1'234 and 1_234", "1234"),
        ("1,2345", "2345"),
        ("1,23", "23"),
        ("-5", "-5"),
        ("−5 degrees", "-5"),
        ("= -$5", "-5"),
        ("$-5", "-5"),
        ("10-5", "5"),
        ("(3)-5", "5"),
        ("-0", "0"),
        ("007", "7"),
        ("٤٢", "42"),
        ("４２", "42"),
        ("10²", "10"),
        ("42.0", "42"),
        ("42.5", None),
        ("7, or rather 42.5", None),
        ("4e1", None),
        ("4e", "4"),
        ("42%", "42"),
        ("\\boxed{42}", "42"),
        ("#### 42", "42"),
        ("forty-two", None),
        ("", None),
        ("1, 2, 3, 4, 5", "5"),
    ],
)
def test_the_last_integer_of_an_answer(text: str, number: str | None) -> None:
    assert last_integer(text) == number


@pytest.mark.parametrize("unit", ["7", "1,234,", "1,", "1.", "-", "1e", "٤", "1,234,5678,", "$-"])
def test_reading_takes_linear_time(unit: str) -> None:
    """Twenty times the text takes 20 times as long; 400 times as long would be quadratic time."""

    def seconds(length: int) -> float:
        text = unit * (length // len(unit))
        best = math.inf
        for _ in range(3):
            start = time.process_time()
            last_integer(text)
            best = min(best, time.process_time() - start)
        return best

    assert seconds(400_000) < 200 * max(seconds(20_000), 0.001)


def test_a_number_too_long_for_int_is_an_answer_like_any_other() -> None:
    digits = "9" * 100_000
    assert last_integer(f"0{digits}.") == digits


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        ("so 6*7=<<6*7=42>>42\n#### 42", "42"),
        ("#### 1,450\n", "1450"),
        ("#### -3", "-3"),
        ("#### $5", "5"),
        ("#### 4.5", None),
        ("####", None),
        ("42", None),
        ("#### 42 apples", None),
        ("#### 42\nor 43", None),
    ],
)
def test_the_final_answer_of_a_solution(solution: str, answer: str | None) -> None:
    assert final_answer(solution) == answer


def value(text: str) -> Fraction:
    """Evaluates an arithmetic expression without the code under test."""

    def of(node: ast.expr) -> Fraction:
        if isinstance(node, ast.Constant):
            return Fraction(node.value)
        assert isinstance(node, ast.BinOp)
        left, right = of(node.left), of(node.right)
        name = type(node.op).__name__
        return {
            "Add": lambda: left + right,
            "Sub": lambda: left - right,
            "Mult": lambda: left * right,
            "Div": lambda: left / right,
        }[name]()

    return of(ast.parse(text, mode="eval").body)


@pytest.mark.parametrize("level", LEVELS)
def test_every_answer_is_what_its_operations_give(level: int) -> None:
    draw = generated(level)
    for seed in range(200):
        problem = draw(seed)
        assert value(str(problem.expression)) == Fraction(problem.answer)
        assert int(problem.answer) > 0
        assert final_answer(problem.solution) == problem.answer
        for bare, result in re.findall(r"<<(.+?)=(\d+)>>", problem.solution):
            assert value(bare) == Fraction(result)
        assert "{" not in problem.question
        assert problem == draw(seed)


def test_every_template_is_used_and_shows_its_numbers() -> None:
    for level, templates in TEMPLATES.items():
        for template in templates:
            assert all(f"{{{name}}}" in template.text for name in template.ranges)
            names = {n.id for n in ast.walk(ast.parse(template.formula)) if isinstance(n, ast.Name)}
            assert names <= set(template.ranges)
            operations = sum(
                isinstance(n, ast.BinOp) for n in ast.walk(ast.parse(template.formula))
            )
            assert operations >= level
        beginnings = {t.text.split("{")[-1] for t in templates}
        asked = {generated(level)(seed).question for seed in range(300)}
        used = [e for e in beginnings if any(q.endswith(e.split("}")[-1]) for q in asked)]
        assert len(used) == len(beginnings)


@pytest.mark.parametrize("level", [1, 5])
def test_validation_asks_no_problem_of_training(level: int) -> None:
    """Numbers decide, not names: a problem under other names is the same problem."""
    draw = generated(level)
    train = {_skeleton(draw(seed).question) for seed in range(2000)}
    validation = {_skeleton(draw(VALIDATION_SEED + seed).question) for seed in range(500)}
    assert len(validation) > 100
    assert not train & validation


def _skeleton(question: str) -> str:
    from air.worlds.questions.arithmetic.templates import ITEMS, NAMES

    return re.sub("|".join([*NAMES, *ITEMS]), "X", question)


async def play(name: str, *answers: str, seed: int = 3) -> list[tuple[str, float, bool]]:
    world = SOURCE.load(name).world()
    await world.reset(seed)
    steps = [await world.step(Action(answer=answer)) for answer in answers]
    await world.close()
    return [(step.observation.text, step.reward, step.done) for step in steps]


async def test_one_turn_ends_with_its_answer() -> None:
    right = generated(None)(3).answer
    assert await play("gsm8k", f"It is {right}.") == [("Correct!", 10.0, True)]
    assert await play("gsm8k", "-1") == [("Incorrect.", -0.1, True)]


async def test_five_turns_say_incorrect_and_ask_again() -> None:
    problem = generated(None)(3)
    again = f"Incorrect. Please think again.\n{problem.question}"
    steps = await play("gsm8k5", "-1", problem.answer)
    assert steps == [(again, -0.1, False), ("Correct!", 10.0, True)]
    steps = await play("gsm8k5", *["-1"] * 5)
    assert [done for *_, done in steps] == [False] * 4 + [True]
    assert steps[-1][:2] == ("Incorrect.", -0.1)


async def test_only_the_answer_is_read_and_after_the_end_nothing_is() -> None:
    right = generated(None)(3).answer
    world = SOURCE.load("gsm8k5").world()
    await world.reset(3)
    assert (await world.step(Action(script=right))).reward == -0.1
    assert (await world.step(Action(answer=f"{right} or {right}1 or -7"))).reward == -0.1
    assert (await world.step(Action(answer=right))).reward == 10
    after = await world.step(Action(answer=right))
    assert (after.reward, after.done) == (0.0, True)
    assert world.facts() == {
        "success": 1.0,
        "num_actions": 3.0,
        "action_is_valid": 2 / 3,
        "action_is_effective": 2 / 3,
    }
    assert await world.close() == world.facts()
    assert await world.close() == {}


def told(question: str) -> int:
    """The answer of a story of level 5, read off its sentences without the code under test."""
    number = 0
    for sentence in question.split(". "):
        (count,) = re.findall(r"\d+", sentence) or ["0"]
        if re.search(r" has \d", sentence):
            number = int(count)
        elif "finds" in sentence or "brings" in sentence:
            number += int(count)
        elif "gives" in sentence or "get lost" in sentence:
            number -= int(count)
        elif "multiplies" in sentence:
            number *= int(count)
        elif "shares" in sentence:
            assert number % int(count) == 0
            number //= int(count)
        else:
            assert sentence.startswith("How many")
    return number


def test_the_sentences_of_a_story_give_its_answer() -> None:
    for seed in (*range(300), *range(VALIDATION_SEED, VALIDATION_SEED + 50)):
        problem = generated(5)(seed)
        assert told(problem.question) == int(problem.answer)


@pytest.mark.slow
@pytest.mark.parametrize("turns", [1, 5])
@pytest.mark.parametrize(
    ("level", "greatest"), [(1, 20), (2, 40), (3, 40), (4, 60), (5, 60), (None, 30)]
)
def test_a_guessing_player_earns_what_chance_gives(
    level: int | None, turns: int, greatest: int
) -> None:
    """Each guess is right with p = 1/greatest if the answer is that small. The guesses until the end are a
    geometric distribution cut at `turns`; its mean reward is summed here by hand. The answer is worked out
    from the problem's operations, or from the sentences of a story."""
    problems = generated(level)
    seeds = range(3000, 6000)

    def moments(problem: Problem) -> tuple[float, float]:
        answer = told(problem.question) if level == 5 else value(str(problem.expression))
        p = 1 / greatest if answer <= greatest else 0.0
        outcomes = [(p * (1 - p) ** k, 10 - 0.1 * k) for k in range(turns)]
        outcomes.append(((1 - p) ** turns, -0.1 * turns))
        mean = sum(chance * reward for chance, reward in outcomes)
        return mean, sum(chance * reward**2 for chance, reward in outcomes) - mean**2

    means, variances = zip(*(moments(problems(seed)) for seed in seeds), strict=True)
    total = 0.0
    for seed in seeds:
        episode = ArithmeticEpisode(problems, turns)
        observation = episode.start(seed)
        player, done = players.guessing(seed, greatest), False
        while not done:
            step = episode.act(player(observation))
            observation, done = step.observation.text, step.done
            total += step.reward
    never_right = -0.1 * turns * len(seeds)
    assert sum(means) - never_right > 3 * math.sqrt(sum(variances))
    assert abs(total - sum(means)) < 3 * math.sqrt(sum(variances))


@pytest.mark.parametrize("turns", [1, 5])
@pytest.mark.parametrize("level", [None, *LEVELS])
def test_a_perfect_player_solves_everything(level: int | None, turns: int) -> None:
    """With its first answer, and after wrong ones, which cost 0.1 each."""
    problems = generated(level)
    for seed in range(100):
        episode = ArithmeticEpisode(problems, turns)
        answer = players.perfect(problems, seed)(episode.start(seed))
        wrong = seed % turns
        assert [episode.act("-1").reward for _ in range(wrong)] == [-0.1] * wrong
        step = episode.act(answer)
        assert (step.reward, step.done) == (10, True)


def rows(count: int) -> str:
    return "\n".join(
        json.dumps({"question": f"What is {n} + 1?", "answer": f"<<{n}+1={n + 1}>>\n#### {n + 1}"})
        for n in range(count)
    )


async def test_a_users_file_is_split_between_training_and_validation(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text(rows(60) + "\n\n")
    problems, _ = from_files(path)
    train = {problems(seed).question for seed in range(60)}
    validation = {problems(VALIDATION_SEED + seed).question for seed in range(60)}
    assert train | validation == {f"What is {n} + 1?" for n in range(60)}
    assert not train & validation
    steps = await play(f"gsm8k@{path}", problems(3).answer)
    assert steps == [("Correct!", 10.0, True)]


def test_a_folder_has_a_file_for_each(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text(rows(3))
    (tmp_path / "test.jsonl").write_text(rows(5))
    problems, _ = from_files(tmp_path)
    assert [problems(seed).answer for seed in range(4)] == ["1", "2", "3", "1"]
    assert len({problems(VALIDATION_SEED + seed).answer for seed in range(5)}) == 5


def test_a_changed_file_is_another_task(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text(rows(60))
    before = SOURCE.load(f"gsm8k@{path}").digest
    path.write_text(rows(61))
    assert SOURCE.load(f"gsm8k@{path}").digest != before


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "no JSON"),
        pytest.param("[" * 100_000, "no JSON: nested too deeply", id="deep"),
        ("[]", "needs the texts `question` and `answer`"),
        ('{"question": "q"}', "needs the texts"),
        ('{"question": " ", "answer": "#### 1"}', "needs the texts"),
        ('{"question": "q", "answer": "1"}', "does not end in `#### ` and an integer"),
    ],
)
def test_a_malformed_row_is_one_line_with_file_and_line(
    tmp_path: Path, line: str, message: str
) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text(rows(2) + "\n" + line + "\n" + rows(60))
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        SOURCE.load(f"gsm8k@{path}")
    assert str(caught.value).startswith(f"{path}:3: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("gsm9k", MissingError, "known: gsm8k, gsm8k5"),
        ("gsm8k-level9", MissingError, "known: 1, 2, 3, 4, 5"),
        ("gsm8k@", ConfigError, "give a JSONL file"),
        ("gsm8k-level1@x", ConfigError, "and no level"),
        ("gsm8k@/no/such/file", MissingError, "/no/such/file: no such file"),
    ],
)
def test_a_wrong_name_says_what_there_is(name: str, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        SOURCE.load(name)


def test_every_name_loads() -> None:
    for name in SOURCE.names():
        task = SOURCE.load(name)
        assert task.id == f"question:{name}"
        assert set(task.facts) >= {"success", "num_actions", "action_is_valid"}


def test_answers_of_many_seeds_vary() -> None:
    """A constant answer must earn next to nothing."""
    answers = [generated(1)(seed).answer for seed in range(1000)]
    assert max(answers.count(a) for a in set(answers)) < 60
