"""Multiple choice: options get letters, and an answer chooses one by its letter, its text, or both."""

from __future__ import annotations

from typing import Any

import pytest

from air.errors import ConfigError
from air.rewards.answers.texts import choice, with_letters

OPTIONS = ["Paris", "12 m", "$x^2$", "None of the above."]
TEN = [f"option {n}" for n in range(10)]


def test_options_get_letters() -> None:
    assert with_letters(OPTIONS).splitlines() == [
        "A. Paris",
        "B. 12 m",
        "C. $x^2$",
        "D. None of the above.",
    ]
    assert with_letters(TEN).splitlines()[-1] == "J. option 9"


@pytest.mark.parametrize(
    ("content", "right"),
    [
        *((one, "B") for one in ("B", "b", "(B)", "B.", "B)", r"\text{B}", r"\textbf{(B)}", "$B$")),
        *((one, "B") for one in ("12 m", "B. 12 m", "(B) 12  m", r"B: \text{12 m}")),
        ("C. $x^2$", "C"),
        ("x^2", "C"),
        ("None of the above", "D"),
        ("D. None of the above.", "D"),
    ],
)
def test_an_option_is_chosen(content: str, right: str) -> None:
    assert choice(f"I say \\boxed{{{content}}}.", OPTIONS, right).reward == 1.0
    wrong = "A" if right != "A" else "B"
    assert choice(f"I say \\boxed{{{content}}}.", OPTIONS, wrong).reward == 0.0


@pytest.mark.parametrize(
    "content",
    ["", "B or C", "B, C", "BC", "B. Paris", "B. or A.", "E", "12", "the second"],
)
def test_anything_else_chooses_nothing(content: str) -> None:
    for right in "ABCD":
        assert choice(f"\\boxed{{{content}}}", OPTIONS, right).reward == 0.0
    assert choice("B", OPTIONS, "B").metrics == {"accuracy": 0.0, "chosen": 0.0}
    assert choice("<think>\\boxed{B}</think> no idea", OPTIONS, "B").reward == 0.0


def test_the_right_option_is_named_as_in_mmlu_pro_and_in_supergpqa() -> None:
    assert choice("\\boxed{J}", TEN, "J").reward == 1.0
    assert choice("\\boxed{J}", TEN, "option 9", "J").reward == 1.0
    assert choice("\\boxed{J}", TEN, "option 9").reward == 1.0
    # The letter in `answer_letter` takes precedence over a text that looks like a letter.
    assert choice("\\boxed{B}", ["C", "A", "B"], "A", "B").reward == 1.0


@pytest.mark.parametrize(
    ("options", "answer", "letter"),
    [
        ("ABCD", "A", ""),
        (["x"], "A", ""),
        (["x", "x"], "A", ""),
        ([*TEN, "one more"], "A", ""),
        (None, "A", ""),
        (OPTIONS, "E", ""),
        (OPTIONS, "Rome", ""),
        (OPTIONS, "", ""),
        (OPTIONS, "Paris", "E"),
        (["D", "C", "B", "A"], "A", ""),  # the letter of one option and the text of another
        (["1", "2", "3"], 2, ""),  # an index, or a text
    ],
)
def test_malformed_rows_are_refused(options: Any, answer: Any, letter: str) -> None:
    with pytest.raises(ConfigError, match=r"^(options|answer): .*or remove the row"):
        choice("\\boxed{A}", options, answer, letter)
