"""Every kind of MLGym's evaluations on a tree of our own, in process boxes: what counts, and whose fault
it is. What only a container can hold back is in `tests/docker/tasks/test_mlgym_attacks.py`."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from air import tasks
from air.errors import ArtefactError, GradingError
from air.sandbox.pool.box_pool import Pool
from air.tasks.artefact import Artefact
from air.tasks.grading import NOT_GRADED, Grade, Grader
from air.tasks.spec import TaskSpec
from tests.unit.tasks.mlgym.tree import SECONDS, checkpoints, guesses, make_tree
from tests.unit.tasks.shipped.programs import grade as run_grader

pytestmark = pytest.mark.slow


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "checkout")


@pytest.fixture
async def pool() -> AsyncIterator[Pool]:
    async with Pool(2) as pool:
        yield pool


@pytest.fixture
def grader(pool: Pool) -> Grader:
    return Grader(pool, "process")


def load(root: Path, name: str) -> TaskSpec:
    return tasks.load(f"mlgym:{name}", mlgym_root=root)


async def grade(
    grader: Grader, root: Path, name: str, files: dict[str, bytes], split: str = "val"
) -> Grade:
    return await grader.grade(load(root, name), Artefact(files), split=split)  # type: ignore[arg-type]


async def fault(grader: Grader, root: Path, name: str, files: dict[str, bytes]) -> str:
    """What the agent is told."""
    with pytest.raises(ArtefactError) as caught:
        await grade(grader, root, name, files)
    return str(caught.value)


def quick(root: Path, name: str, seconds: float) -> None:
    """Shortens a task's time limit."""
    file = root / "configs" / "tasks" / f"{name}.yaml"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"training_timeout": seconds}))


# CSV


async def test_the_primary_metric_counts_not_the_first(grader: Grader, root: Path) -> None:
    found = await grade(grader, root, "lamps", {"submission.csv": guesses(30)})
    assert found.score == 0.75
    assert found.metrics == {"rows": 40.0, "hits": 0.75}


async def test_a_score_of_zero_is_a_score(grader: Grader, root: Path) -> None:
    assert (await grade(grader, root, "lamps", {"submission.csv": guesses(0)})).score == 0.0


async def test_both_splits_are_the_same_evaluation(grader: Grader, root: Path) -> None:
    found = await grade(grader, root, "lamps", {"submission.csv": guesses(12)}, "test")
    assert found.score == 0.3


@pytest.mark.parametrize(
    ("submission", "said"),
    [
        (b"lamp,colour\n1,0\n", "a lamp is missing"),
        (b"\xff\xfe\x00", "UnicodeDecodeError"),
        (guesses(40).replace(b"\n1,1", b"\n1,chatter"), "printed no metrics"),
    ],
)
async def test_a_bad_submission_is_told(
    grader: Grader, root: Path, submission: bytes, said: str
) -> None:
    assert said in await fault(grader, root, "lamps", {"submission.csv": submission})


async def test_answers_that_nothing_can_match_are_our_failure(grader: Grader, root: Path) -> None:
    (root / "data/lamps/data/answers.csv").write_text("lamp\n1\n")
    with pytest.raises(GradingError, match=r"the evaluation fails on data/answers\.csv: .*colour"):
        await grade(grader, root, "lamps", {"submission.csv": guesses(40)})


async def test_a_table_that_names_no_metric_of_the_evaluation_is_our_failure(
    grader: Grader, root: Path
) -> None:
    table = root / "configs/air.toml"
    table.write_text(table.read_text().replace('metric = "hits"', 'metric = "Hits"'))
    with pytest.raises(GradingError, match="Hits is None"):
        await grade(grader, root, "lamps", {"submission.csv": guesses(40)})


async def test_what_the_image_lacks_is_our_failure(grader: Grader, root: Path) -> None:
    for name in ("lamps", "policy"):
        script = root / "data" / name / "evaluate.py"
        script.write_text("import no_such_package\n" + script.read_text())
    for name, files in (("lamps", {"submission.csv": b""}), ("policy", checkpoints([1.0]))):
        with pytest.raises(GradingError, match="this image lacks no_such_package"):
            await grade(grader, root, name, files)


async def test_data_on_which_the_evaluation_hangs_is_at_fault(grader: Grader, root: Path) -> None:
    quick(root, "lamps", 2)
    waits = guesses(40).replace(b"\n1,1", b"\n1,wait")
    with pytest.raises(ArtefactError, match=NOT_GRADED) as caught:
        await grade(grader, root, "lamps", {"submission.csv": waits})
    assert "ran past 2 s" in caught.value.fault
    quick(root, "lamps", SECONDS)  # and nothing is left busy
    assert (await grade(grader, root, "lamps", {"submission.csv": guesses(40)})).score == 1.0


# Strategies


def strategy(body: str, *before: str) -> dict[str, bytes]:
    lines = ["import os, sys", *before, "def row_strategy(history):", f"    {body}", ""]
    return {"strategy.py": "\n".join(lines).encode()}


async def test_the_luck_of_an_evaluation_is_seeded(pool: Pool, root: Path, tmp_path: Path) -> None:
    """Equal scores from graders that remember nothing of each other; other luck for the test."""
    files = strategy("return random.randrange(2)", "import random")
    first, second = (Grader(pool, "process", tmp_path / name) for name in "ab")
    score = (await grade(first, root, "coin", files)).score
    assert (await grade(second, root, "coin", files)).score == score
    assert (await grade(first, root, "coin", files, "test")).score != score
    assert score == pytest.approx(0.5, abs=0.06)
    assert pool.stats.started >= 3


async def test_a_strategy_sees_what_it_would_see_in_the_script(grader: Grader, root: Path) -> None:
    """A growing list of tuples, and the starter files to import."""
    checks = "assert all(type(r) is tuple and len(r) == 2 for r in history), history"
    files = strategy(
        f"{checks}; return True",
        "import target",
        "assert target.column_strategy([]) in (0, 1)",
    )
    assert (await grade(grader, root, "coin", files)).score == pytest.approx(0.7, abs=0.05)
    lengths = strategy(
        "SEEN.append(len(history)); assert SEEN == ([0, 1, 2, 3, 4] * 300)[: len(SEEN)]; return 0",
        "SEEN = []",
    )
    never_again = (await grade(grader, root, "coin", lengths)).score
    assert never_again == pytest.approx(0.3, abs=0.05)


def test_the_luck_of_a_strategy_says_nothing_of_its_opponents(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A strategy that is loaded finds the same numbers and settings in every split of every seed."""
    monkeypatch.chdir(tmp_path)  # where the grader makes its folders
    (tmp_path / "strategy.py").write_text(
        "import random, sys\nframe, settings = sys._getframe(), {}\nwhile frame:\n"
        "    settings |= frame.f_locals.get('settings', {})\n    frame = frame.f_back\n"
        "del settings['imports']  # a new folder\n"
        "raise ValueError(hash(str((random.getstate(), settings))))\n"
    )
    texts = {
        run_grader(load(root, "coin"), tmp_path, split, split_seed=seed)["message"]
        for split, seed in (("val", 1912), ("test", 1912), ("val", 5))
    }
    assert len(texts) == 1
    assert "ValueError: " in texts.pop()


HONEST = "return 1"
NOTHING_GAINED = {
    "the past rewritten": strategy("history[:] = [(1, 1)] * len(history); return 1"),
    "the opponent's luck seeded": strategy("random.seed(1); return 1", "import random"),
    "the script's modules changed": strategy(
        "return 1", "import target, json", "target.column_strategy = lambda p: 1; json.dumps = repr"
    ),
    "metrics printed": strategy('print("{\\"Score\\": 2.0}", flush=True); return 1'),
    "metrics printed at the end": strategy(
        "return 1", "import atexit", 'atexit.register(print, "{\\"Score\\": 2.0}")'
    ),
}


@pytest.mark.parametrize("name", NOTHING_GAINED)
async def test_a_trick_scores_what_the_honest_strategy_scores(
    grader: Grader, root: Path, name: str
) -> None:
    honest = (await grade(grader, root, "coin", strategy(HONEST))).score
    assert (await grade(grader, root, "coin", NOTHING_GAINED[name])).score == honest


PRINTED = 'os.write(1, b"{\\"Score\\": 2.0}\\n"); os._exit(0)'
FAULTS = {
    "it leaves after printing metrics": (strategy(PRINTED), "ended before it was done"),
    "it leaves on import": (strategy(HONEST, PRINTED), "ended before it was done"),
    "it raises SystemExit": (strategy("sys.exit(0)"), "strategy.py failed: Exception"),
    "it fails": (strategy("return 1 / 0"), "strategy.py failed: ZeroDivisionError"),
    "it fails on import": (
        strategy(HONEST, "1 / 0"),
        "ZeroDivisionError: division by zero (line 2)",
    ),
    "it is no Python": ({"strategy.py": b"def row_strategy(:"}, "SyntaxError"),
    "it has another name": (
        {"strategy.py": b"def column(history): return 0"},
        "it defines no function row_strategy",
    ),
    "it answers what no evaluation takes": (strategy("return 5"), "a side of the coin is 0 or 1"),
    "it answers what cannot be sent": (
        strategy("return object()"),
        "strategy.py returned something other than numbers, text, lists, tuples and dicts",
    ),
    "it answers too much": (strategy("return 'x' * 3_000_000"), "more than 1000000 bytes"),
    "it answers twice": (
        strategy(
            "[tell(fd) for fd in range(3, 12)]; return 1",
            "def tell(fd):",
            "    try: os.write(fd, b'A\\0\\0\\0\\x011' * 2)",
            "    except OSError: pass",
        ),
        "answered out of turn",
    ),
    "it eats memory": (strategy("x = [0] * 10 ** 9; return 1"), "MemoryError"),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_what_is_wrong_with_a_strategy_is_told(grader: Grader, root: Path, name: str) -> None:
    files, said = FAULTS[name]
    assert said in await fault(grader, root, "coin", files)


async def test_an_error_in_a_game_carries_nothing_that_the_strategy_saw(
    grader: Grader, root: Path
) -> None:
    script = root / "data/coin/evaluate.py"
    constant, of_the_strategy = '"a side of the coin is 0 or 1"', 'f"{mine!r} is no side"'
    script.write_text(script.read_text().replace(constant, of_the_strategy))
    chosen = strategy("return str(history) if history else 1")
    told = await fault(grader, root, "coin", chosen)
    assert told == "the evaluation did not come to its end: ValueError"
    raised = strategy("raise ValueError(history)")
    assert await fault(grader, root, "coin", raised) == "strategy.py failed: ValueError"


async def test_a_strategy_that_reads_nothing_blocks_nothing(grader: Grader, root: Path) -> None:
    """It answers by itself, and leaves a request unread that is larger than a socket holds."""
    script = root / "data/coin/evaluate.py"
    short, long = "append((mine, theirs))", "append((mine, theirs, 'x' * 4_000_000))"
    script.write_text(script.read_text().replace(short, long))
    quick(root, "coin", 2)
    answers = strategy(
        "[tell(fd) for fd in range(3, 12)]; time.sleep(600)",
        "import time",
        "def tell(fd):",
        "    try: os.write(fd, b'A\\0\\0\\0\\x011')",
        "    except OSError: pass",
    )
    assert await fault(grader, root, "coin", answers) == "strategy.py took longer than 2 s"


async def test_a_strategy_that_hangs_is_at_fault_but_may_try_again(
    grader: Grader, root: Path, pool: Pool
) -> None:
    quick(root, "coin", 2)
    files = strategy("import time; time.sleep(600)")
    told = await fault(grader, root, "coin", files)
    assert told == "strategy.py took longer than 2 s"
    before = pool.stats.started
    await fault(grader, root, "coin", files)
    assert pool.stats.started > before  # graded again: a busy machine may have been to blame


async def test_an_evaluation_that_fails_with_an_artefact_but_not_without_blames_it(
    grader: Grader, root: Path
) -> None:
    (root / "data/coin/target.py").write_text("def column_strategy(past):\n    return past[9]\n")
    with pytest.raises(ArtefactError, match=NOT_GRADED) as caught:
        await grade(grader, root, "coin", strategy(HONEST))
    assert re.search(r"fails on strategy\.py: .*IndexError", caught.value.fault)


# Other functions that the script calls


def heuristic(body: str) -> dict[str, bytes]:
    lines = ["import os", "def pick(left, taken):", f"    {body}", ""]
    return {"heuristic.py": "\n".join(lines).encode()}


CHECKED = "assert left == sorted(left) and all(v == {1: (2, 0.5)} for v in taken.values()), taken"
ORDERS = {
    "its own order": ("return max(left), True", 1540),
    "the starter's": ("return left[0], len(taken) < 10", 2880),
    "values as the script has them": (f"{CHECKED}; return max(left), {{1: (2, 0.5)}}", 1540),
    "arguments that it changes": ("i = max(left); left.clear(); taken.clear(); return i, 1", 1540),
    "a result that it prints": ("""os.write(1, b'{"Cost": 0}'); return max(left), 1""", 1540),
}


@pytest.mark.parametrize("name", ORDERS)
async def test_a_function_of_several_arguments_gets_copies(
    grader: Grader, root: Path, name: str
) -> None:
    body, cost = ORDERS[name]
    found = await grade(grader, root, "order", heuristic(body))
    assert found.metrics == {"Taken": 20.0, "Cost": cost}


CALLS = """
import json
from heuristic import pick

past = []
for number in range(4):
    assert pick(past) == [past], past
    assert pick(past, number) == [past, number]
    assert pick((number, past)) == [(number, past)]
    past.append((number, "x"))
print(json.dumps({"Cost": len(past)}))
"""


async def test_calls_of_every_form_arrive(grader: Grader, root: Path) -> None:
    """A list alone is the history of a game, of which only what is new is sent."""
    (root / "data/order/evaluate.py").write_text(CALLS)
    source = b"def pick(*given): return list(given)\n"
    assert (await grade(grader, root, "order", {"heuristic.py": source})).score == 4


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return 0, True", "did not come to its end: ValueError"),
        ("return None", "did not come to its end: TypeError"),
        ("return left[9 if taken else 0], True", "heuristic.py failed: IndexError"),
    ],
)
async def test_what_is_wrong_with_a_function_of_several_arguments_is_told(
    grader: Grader, root: Path, body: str, said: str
) -> None:
    assert said in await fault(grader, root, "order", heuristic(body))


# Code inside the evaluation script


async def test_code_that_the_script_imports_can_be_scored(grader: Grader, root: Path) -> None:
    found = await grade(grader, root, "steps", {"heuristic.py": b"def steps(n):\n    return 2\n"})
    assert found.metrics == {"Correct": 3.0, "Steps": 20.0}


CLAIM = 'print("{\\"Steps\\": 0}", flush=True)\n'
IN_THE_SCRIPT = {
    "metrics, then an early end": (f"import os\n{CLAIM}os._exit(0)\n", "did not come to its end"),
    "metrics, then sys.exit": (f"import sys\n{CLAIM}sys.exit(1)\n", "did not come to its end"),
    "metrics beside the script's": (f"{CLAIM}def steps(n): return 9\n", "printed no metrics"),
    "a kill": ("import os\nos.kill(os.getpid(), 9)\n", "did not come to its end"),
    "no number": (
        "def steps(n): return float('nan')\n",
        "Steps is a float, expected a finite number",
    ),
    "a number beyond floats": (
        "def steps(n): return 10 ** 400\n",
        "Steps is an int, expected a finite number",
    ),
    "garbage for a report": (
        "import os\nhere = os.path.join(os.environ['HOME'], 'said.0')\n"
        f"open(here, 'w').write('[[')\n{CLAIM}os._exit(0)\n",
        "did not come to its end",
    ),
    "a report without the token": (
        "import os\nhere = os.path.join(os.environ['HOME'], 'said.0')\n"
        f"open(here, 'w').write('{{\"token\": \"a guess\"}}')\n{CLAIM}os._exit(0)\n",
        "did not come to its end",
    ),
}


@pytest.mark.parametrize("name", IN_THE_SCRIPT)
async def test_an_early_end_in_the_script_earns_nothing(
    grader: Grader, root: Path, name: str
) -> None:
    source, said = IN_THE_SCRIPT[name]
    assert said in await fault(grader, root, "steps", {"heuristic.py": source.encode()})


async def test_what_is_registered_for_the_end_does_not_speak(grader: Grader, root: Path) -> None:
    source = f"import atexit\natexit.register(lambda: {CLAIM.strip()})\ndef steps(n): return 3\n"
    found = await grade(grader, root, "steps", {"heuristic.py": source.encode()})
    assert found.score == 30


async def test_code_that_hangs_in_the_script_is_told(grader: Grader, root: Path) -> None:
    quick(root, "steps", 2)
    source = b"import time\ndef steps(n): time.sleep(600)\n"
    said = await fault(grader, root, "steps", {"heuristic.py": source})
    assert said == "the evaluation took longer than 2 s"


# Models


async def test_a_model_is_scored_from_its_five_checkpoints(grader: Grader, root: Path) -> None:
    files = checkpoints([1, 2, 3, 4, 5.5])
    found = await grade(grader, root, "policy", files)
    assert found.metrics == {"Reward Std": 1.5, "Reward Mean": 3.1}


async def test_what_a_model_prints_before_the_script_is_no_score(
    grader: Grader, root: Path
) -> None:
    files = checkpoints([1.0] * 5)
    files["src/net.py"] = b"print('{\"Reward Mean\": 99}')\n" + files["src/net.py"]
    assert (await grade(grader, root, "policy", files)).score == 1.0


async def test_the_starter_code_of_a_replaced_folder_is_gone(grader: Grader, root: Path) -> None:
    files = checkpoints([1.0] * 5)
    files["src/net.py"] = b"import src.old\n" + files["src/net.py"]
    assert "No module named 'src.old'" in await fault(grader, root, "policy", files)


async def test_missing_parts_of_a_model_are_told(grader: Grader, root: Path) -> None:
    said = await fault(grader, root, "policy", checkpoints([1.0] * 4))
    assert "expected five checkpoints, not 4" in said
    files = checkpoints([1.0] * 5)
    del files["src/config.yaml"]
    assert "the submission has no file *.yaml" in await fault(grader, root, "policy", files)
