"""Mathematical equality: limits, bad rows, and threads."""

from __future__ import annotations

import contextlib
import itertools
import operator
import os
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import permutations, product
from pathlib import Path
from typing import Any

import pytest

from air.errors import ConfigError, InfrastructureError
from air.rewards.answers import runner
from air.rewards.answers.extraction import final_answer
from air.rewards.answers.mathematics import (
    MOST_DEPTH,
    MOST_LEAVES,
    MOST_PARTS,
    compare,
    equal,
    is_expression,
    math_equal,
    math_string_equal,
    measured,
)
from air.rewards.answers.notation import MOST_CHARACTERS, normal
from air.rewards.answers.quantities import Quantity, number, without_unit
from air.rewards.answers.worker import can_be_paired, same_trees

DOCS = Path(__file__).parents[4] / "docs" / "answers.md"


def test_threads_compare_at_the_same_time() -> None:
    pairs = [("x+1", "1+x", True), ("x+1", "x+2", False), (r"\sqrt{8}", r"2\sqrt{2}", True)] * 4
    with ThreadPoolExecutor(6) as threads:
        results = list(threads.map(lambda pair: equal(pair[0], pair[1]), pairs))
    assert results == [wanted for _, _, wanted in pairs]


@pytest.mark.slow
def test_one_limit_holds_for_all_parts_together_and_spares_the_next_comparison() -> None:
    """Eight parts that each take for ever are as dear as one."""
    endless = ",".join(["(x+y+z+w)^{999}"] * 8)
    assert equal("x+y", "y+x")  # so that there is an idle process
    process = runner._workers[os.getpid()][-1]._process.pid
    start = _seconds_of_copies(process)
    assert compare(",".join(f"x+{n}" for n in range(8)), endless) is None
    assert equal("x+y", "y+x")
    # The kernel counts CPU time in two ways, which differ a little. Eight limits would be 8 times one.
    assert 0 < _seconds_of_copies(process) - start < 4 * runner.SECONDS


@pytest.mark.slow
def test_the_limits_hold_beside_a_pair_that_raises_an_exception() -> None:
    """sympy raises an exception for 1 and the sine of infinity. The pair is unequal, and the limit of time
    holds for all other pairs together."""
    endless = ",".join(["(x+y+z+w)^{999}"] * 8)
    assert compare(",".join(["1"] * 9), rf"\sin\infty,{endless}") is None
    assert compare("1, x+1", r"\sin\infty, 1+x") is False
    assert compare(r"1, \sin\infty, x+1", r"\sin\infty, 1+x, 1") is True


def test_a_part_that_is_known_to_be_wrong_decides_beside_a_part_that_cannot_be_compared() -> None:
    assert compare("(x+y, 1)", "((x+y+z+w)^{999}, 2)") is False


def test_an_answer_with_too_many_parts_equals_only_the_same_text() -> None:
    def listed(count: int, end: str = "") -> str:
        return ", ".join(f"{number}{end}" for number in range(count))

    assert compare(listed(MOST_PARTS), listed(MOST_PARTS, ".0")) is True
    assert compare(listed(MOST_PARTS + 1), listed(MOST_PARTS + 1, ".0")) is None
    assert compare(listed(MOST_PARTS + 1), listed(MOST_PARTS + 1)) is True


def test_among_too_many_parts_inside_parts_no_expressions_are_compared() -> None:
    def nested(count: int, start: str = "", end: str = "") -> str:
        parts = [f"{start}{number}{end}" for number in range(count)]
        inner = ["(" + ", ".join(parts[n : n + 5]) + ")" for n in range(0, count, 5)]
        return "(" + ", ".join(inner) + ")"

    assert compare(nested(MOST_LEAVES, "x+"), nested(MOST_LEAVES, end="+x")) is True
    assert compare(nested(MOST_LEAVES + 1, "x+"), nested(MOST_LEAVES + 1, end="+x")) is None
    assert compare(nested(MOST_LEAVES + 1), nested(MOST_LEAVES + 1, end=".0")) is True


@pytest.mark.parametrize(("more", "equal_parts"), [(0, True), (1, None)])
def test_brackets_that_are_nested_too_deeply_are_not_equal(
    more: int, equal_parts: bool | None
) -> None:
    depth = MOST_DEPTH + more
    pairs = ["(" * depth + number + ", 2)" * depth for number in ("1", "1.0")]
    assert compare(*pairs) is equal_parts
    sums = ["(" * nested + "x+1" + ")" * nested for nested in (4, depth)]
    assert compare("1+x", sums[0]) is True
    # Parsing the allowed depth needs nearly as much time as a comparison may take.
    assert is_expression(sums[1]) is (more == 0)
    assert more == 0 or compare("1+x", sums[1]) is False


def test_the_documentation_names_the_limits_on_parts() -> None:
    text = " ".join(DOCS.read_text("utf-8").split())
    assert f"more than {MOST_PARTS} parts" in text
    assert f"more than {MOST_LEAVES} in all" in text
    assert f"More than {MOST_DEPTH} brackets" in text


def _seconds_of_copies(process: int) -> float:
    """Returns the CPU time of the copies of itself that a process has made and that have ended."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[13:15])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(
    ("gold", "prediction", "wanted"),
    [
        (r"\{50\%, 50\}", r"\{50, 0.5\}", True),
        (r"\{50, 50\%\}", r"\{50, 0.5\}", True),
        (r"50\%, 50, 50\%", "50, 0.5, 0.5", True),
        (r"50\%, 50, 50", "50, 0.5, 0.5", False),
        (r"50\%, 50, x+1", "50, 0.5, 1+x", True),
        (r"50\%, 50, x+1", "50, 0.6, 1+x", False),
        (r"1.41421, \sqrt{2}", r"\sqrt{2}, 1.414211", True),
        (r"\sqrt{2}, 1.41421", r"\sqrt{2}, 1.414211", True),
    ],
)
def test_parts_are_paired_even_if_the_first_fit_leaves_none_for_another(
    gold: str, prediction: str, wanted: bool
) -> None:
    """50% equals 50 and 0.5, and 1.41421 equals the root of 2 and 1.414211, which differ. Numbers are paired
    in this process, expressions in the worker."""
    assert equal(gold, prediction) is wanted


def test_a_pairing_is_found_exactly_if_one_exists() -> None:
    """For all 512 ways in which three parts can equal three others."""
    for same in product((False, True), repeat=9):
        wanted = any(
            all(same[3 * row + column] for row, column in enumerate(order))
            for order in permutations(range(3))
        )
        assert can_be_paired(3, partial(_is_set, same)) is wanted


def _is_set(table: Sequence[bool], row: int, column: int) -> bool:
    return table[3 * row + column]


def test_trees_are_the_same_exactly_if_one_is_the_other_after_exchanges_in_sets() -> None:
    """For all trees of one to four numbers in at most two levels of tuples and sets of two parts."""
    trees = _trees(2)
    assert len(trees) == 2 + 2 * 10 * 10
    for one in trees:
        orders = _orders(one)
        for other in trees:
            assert same_trees(one, other, operator.eq) is (other in orders), (one, other)


def _trees(depth: int) -> list[Any]:
    numbers: list[Any] = [1, 2]
    if not depth:
        return numbers
    inner = _trees(depth - 1)
    pairs = list(product(inner, repeat=2))
    return [*numbers, *((kind, parts) for kind in ("set", "()") for parts in pairs)]


def _orders(tree: Any) -> list[Any]:
    """Returns all trees that differ from a tree in the order of the parts of sets only."""
    if isinstance(tree, int):
        return [tree]
    kind, parts = tree
    orders = permutations(parts) if kind == "set" else [parts]
    return [(kind, each) for order in orders for each in product(*map(_orders, order))]


def test_a_process_that_something_else_ends_is_replaced() -> None:
    equal("x+1", "1+x")  # so that there is an idle process
    process = runner._workers[os.getpid()][-1]
    process._process.kill()
    process._process.wait()
    assert equal("x+2", "2+x")


@pytest.mark.slow
def test_an_expression_whose_process_is_killed_again_and_again_is_wrong() -> None:
    """As the kernel of a machine with little memory does. Harmless expressions are compared meanwhile."""
    equal("x+1", "1+x")
    worker = runner._workers[os.getpid()][-1]._process.pid
    ended, kills = threading.Event(), []

    def kill() -> None:
        while not ended.wait(0.01):
            with contextlib.suppress(OSError):  # a copy may end at any time
                for copy in Path(f"/proc/{worker}/task/{worker}/children").read_text().split():
                    used = Path(f"/proc/{copy}/stat").read_text().rpartition(")")[2].split()[11:13]
                    if sum(map(int, used)) > 0.5 * os.sysconf("SC_CLK_TCK"):
                        os.kill(int(copy), signal.SIGKILL)
                        kills.append(copy)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        assert not equal("x+1", "(x+y+z+w)^{999}")
        assert kills
    finally:
        ended.set()
        killer.join()


def test_where_nothing_can_be_compared_the_expression_is_not_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    while idle := runner._workers.get(os.getpid()):
        idle.pop().close()
    (tmp_path / "math_verify.py").write_text("raise SystemExit(1)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(InfrastructureError, match="has ended"):
        equal("x+2", "2+x")


def test_an_error_of_the_worker_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its imports, and while it compares."""
    package = tmp_path / "math_verify"
    package.mkdir()
    (package / "parser.py").write_text("LatexExtractionConfig = dict")
    compares = """
import os
first, verify = os.getpid(), None

def parse(*_, **__):
    if os.getpid() != first:
        raise SystemExit("it is\\x1b[1m broken\\n")
"""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for source, words in (
        ("import no_such_module", "ModuleNotFoundError: .*no_such_module.*__init__.py, line 1"),
        (compares, r"SystemExit: 'it is\\x1b\[1m broken\\n' \(.*__init__.py, line 7\)"),
    ):
        (package / "__init__.py").write_text(source)
        while idle := runner._workers.get(os.getpid()):
            idle.pop().close()
        with pytest.raises(InfrastructureError, match=f"ended with status 2: {words}") as error:
            equal("x+2", "2+x")
        assert "\n" not in str(error.value)
    while idle := runner._workers.get(os.getpid()):
        idle.pop().close()


def test_long_replies_take_little_time() -> None:
    replies = (
        r"\boxed{" * 100_000,
        "<think>" * 100_000,
        "<answer>" * 100_000 + "1",
        "answer is " * 100_000,
        "1" * 1_000_000,
        "(" * 1_000_000,
        "#### " * 200_000,
        "1" + r"\!234" * 20_000 + "5",
    )
    start = time.process_time()
    for reply in replies:
        assert math_equal(reply, "1").reward == 0
        assert math_string_equal(reply, "7").reward == 0
    assert time.process_time() - start < 20  # measured: 0.5


OTHER_FORMS = {"1": "3/3", ".1": "1/10", "1%": "0.01"}


@pytest.mark.slow
def test_an_answer_with_many_parts_is_compared_in_limited_time() -> None:
    """Answers with the most parts: 32 tuples or sets, with as many numbers as the longest answer has room
    for. A longer answer is none, whatever its parts are, so the number of comparisons is limited."""
    start = time.process_time()
    for brackets, gold, other in (
        ("()", ("1", "2", "3"), ("4", "5", "6")),
        ("()", (".1", ".2"), (".4", ".5")),
        ("()", ("1%", "2%"), ("4", "5")),
        ((r"\{", r"\}"), ("1", "2", "3"), ("4", "5", "6")),
    ):
        right, wrong = (_longest(*brackets, numbers) for numbers in (gold, other))
        assert measured(right, wrong).equal is False
        equal = right.replace(f"{gold[0]},", f"{OTHER_FORMS[gold[0]]},", 1)
        assert measured(right, equal).equal is True
    assert time.process_time() - start < 20  # measured: 1
    elements = r"\{" + ",".join(str(number) for number in range(450)) + r"\}"
    assert normal(elements) == ""


def _longest(opening: str, closing: str, numbers: Sequence[str]) -> str:
    """Returns a list of 32 tuples or sets of numbers, with as many numbers as an answer can have."""
    endless = itertools.cycle(numbers)
    for count in range(30, 0, -1):
        parts = (opening + ",".join(itertools.islice(endless, count)) + closing for _ in range(32))
        text = ",".join(parts)
        if len(text) <= MOST_CHARACTERS:
            return text
    raise AssertionError("an answer has room for 32 numbers")


def test_only_the_end_of_a_long_reply_is_read() -> None:
    assert final_answer(r"\boxed{1}" + " " * 200_000) == ""
    assert final_answer(" " * 200_000 + r"\boxed{1}") == "1"


@pytest.mark.parametrize("answer", ["", "  ", None, True, ["1"], {"a": 1}, "9" * 2000])
def test_a_row_without_an_answer_is_the_users_fault(answer: object) -> None:
    with pytest.raises(ConfigError, match="answer"):
        equal(answer, "1")


def test_the_last_integer_needs_an_integer_in_the_row() -> None:
    with pytest.raises(ConfigError, match="no integer"):
        math_string_equal("1", "a half")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", "12"),
        ("-1,234.5", "-2469/2"),
        (r"2\frac{1}{2}", "5/2"),
        ("1.5e3", "1500"),
        (r"3 \cdot 10^{-2}", "3/100"),
        ("1/0", None),
        ("1,23", None),
        ("12a", None),
    ],
)
def test_plain_numbers(text: str, value: str | None) -> None:
    read = number(text)
    assert (str(read.value) if read else None) == value


def test_six_digits_make_a_rounded_decimal() -> None:
    assert number("0.333333") == Quantity(number("333333/1000000").value, 6)  # type: ignore[union-attr]
    assert [number(text).is_rounded for text in ("0.333333", "0.33333", "0.000001", "42.0")] == [  # type: ignore[union-attr]
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("5 cm", "cm"),
        ("5 square meters", "m2"),
        ("$5", "dollar"),
        ("5%", "%"),
        ("5x", ""),
        ("x", ""),
    ],
)
def test_units(text: str, unit: str) -> None:
    assert without_unit(text)[1] == unit
