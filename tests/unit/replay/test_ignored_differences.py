"""What a replay compares: declared rules hide what they say, and nothing else."""

from __future__ import annotations

import pytest

from air.replay.ignored_differences import RULES, Folders, Rule, normalised, texts, values

HERE = Folders()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_rule_hides_its_example_within_a_sentence(rule: Rule) -> None:
    text = rule.example if rule.name == "background job" else f"it said {rule.example} here"
    assert rule.instead.split(r"\1")[-1].split(r"\2")[-1] in normalised(text, HERE)
    assert normalised(text, HERE) != text
    assert normalised(text, HERE, exact=True) == text


@pytest.mark.parametrize(
    "text",
    [
        "[accuracy] 0.7031 (best 0.7031, baseline 0.5167)",
        "[exit 1]",
        "epoch 3 loss 0.412 acc 0.91",
        "model.py:12: in <module>",
        "[3 turns left]",
        "the seed\n0.5124",
        "Total 12 samples, 3 sets, 4 sizes",
        "/tmp/result.csv /tmp/mine/a.txt",
        "1795295436 is a date, 123456 and 2222222222 are none"[22:],
        "version 1.2.3 at 12:30",
    ],
)
def test_what_is_not_declared_is_compared(text: str) -> None:
    assert normalised(text, HERE) == text


def test_any_changed_character_outside_of_the_rules_is_found() -> None:
    text = "step 3: loss 0.5124 after 0.31 s\nsaved to /workspace/out.txt\n"
    spared = "0.31 s"
    for at, char in enumerate(text):
        other = text[:at] + ("x" if char != "x" else "y") + text[at + 1 :]
        inside = text.index(spared) <= at < text.index(spared) + len(spared)
        if not inside:
            found = texts(2, "observation", (text, HERE), (other, HERE))
            assert found is not None, at
            assert found.turn == 2
    assert texts(2, "observation", (text, HERE), (text.replace("0.31", "17.02"), HERE)) is None


def test_both_sides_and_the_line_are_reported() -> None:
    found = texts(4, "observation", ("a\nbc\nd", HERE), ("a\nbx\nd", HERE))
    assert found is not None
    assert str(found) == ("step 4: observation, line 2\n  recorded: 'bc'\n  replayed: 'bx'")
    shorter = texts(4, "observation", ("a\nb", HERE), ("a\nb\nc", HERE))
    assert shorter is not None
    assert "then the text ends" in shorter.recorded
    assert texts(0, "x", ("same", HERE), ("same", HERE)) is None


def test_a_box_that_has_its_folders_elsewhere_is_no_difference() -> None:
    there = Folders("/tmp/air-1-x/workspace", "/tmp/air-1-x/tmp")
    text = "/tmp/air-1-x/workspace/a and /tmp/air-1-x/tmp/b"
    assert texts(1, "observation", ("/workspace/a and /tmp/b", HERE), (text, there)) is None
    assert texts(1, "observation", ("/workspace/a and /tmp/c", HERE), (text, there)) is not None


def test_values_differ_to_the_last_digit() -> None:
    assert values(1, "score", 0.1, 0.1) is None
    assert values(1, "score", 0.1, 0.1 + 1e-16) is not None
    assert values(1, "score", None, 0.0) is not None
