"""Decides whether two mathematical answers are equal, and defines the answer checkers that use this equality.

Two answers are equal if their normalised texts are equal. Otherwise both are split into parts
(`structure.py`), the parts into their own parts, and so on. Each part of one answer must equal a part of the
other. Parts without parts of their own are compared as plain numbers with units (`quantities.py`), or as
expressions, which math-verify compares in a process with limits (`runner.py`). A prediction is wrong if it
contains anything but the notation that `is_expression` accepts, for example prose, unlisted LaTeX commands,
or several answers to choose from.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import Any

from air.errors import ConfigError
from air.rewards.answers import quantities, runner, worker
from air.rewards.answers.extraction import final_answer, last_boxed, outside_thoughts
from air.rewards.answers.integers import last_integer
from air.rewards.answers.notation import compact, normal, without_separators
from air.rewards.answers.structure import Parts, split
from air.rewards.answers.verdict import Verdict, pays
from air.rewards.answers.worker import Tree, same_trees

RULES = 3
"""The version of the rules by which answers are equal. Raise this number with every change of the modules
that this one uses after which a verdict differs. This file is part of the digest (hash) of tasks with its
checkers; those modules are not."""
MOST_PARTS = 32
"""The maximum number of parts of an answer, such as elements of a set. An answer with more parts equals only
an answer with the same text."""
MOST_LEAVES = 64
"""The maximum number of parts without parts of their own, such as the four numbers of `\\{(1, 2), (3, 4)\\}`.
In an answer with more of them, only texts and numbers are compared, not expressions."""
MOST_DEPTH = 20
"""The maximum nesting depth of brackets in an expression, and of parts in an answer. A text with deeper
nesting is not accepted as an expression."""
MOST_BITS = 10_000
"""The maximum size in bits of a number that is written out in digits. Larger ones, such as `1e9999`, stay
as written, because Python refuses to print them."""
_COMMANDS = frozenset(
    re.findall(
        r"\w+",
        """
    frac sqrt pi infty cdot times div le ge lt gt ne in cup cap emptyset mathbb binom log ln
    exp sin cos tan sec csc cot arcsin arccos arctan sinh cosh tanh begin end text lfloor
    rfloor lceil rceil circ angle alpha beta gamma delta epsilon varepsilon zeta eta theta iota
    kappa lambda mu nu xi rho sigma tau upsilon phi varphi chi psi omega Gamma Delta Theta
    Lambda Xi Pi Sigma Phi Psi Omega operatorname
    """,
    )
)
_TOKEN = re.compile(
    r"""\\(?:begin|end)\s*\{[pbvBV]?matrix\}|\\(?:text|mathbb)\s*\{\s*[A-Za-z]{1,12}\s*\}|\\\\
    |\\[{}]|\\(?P<command>[A-Za-z]+)|(?P<letters>[A-Za-z]+)
    |[0-9]+(?:\.[0-9]*)?|\.[0-9]+|[-+/^_=<>!|&(){}\[\],:]|\s+""",
    re.VERBOSE,
)
_COSTLY = re.compile(
    r"""\^[^^+]{0,9}\^[^^+]{0,9}\^  # a tower of powers
    |(?:[)}\]!]|[0-9]{4})\s*!       # a factorial of a factorial, of brackets, of a large number
    |\^\s*\{?\s*-?[0-9]{5}          # a large power""",
    re.VERBOSE,
)
_NUMBER_TYPES = (int, float, str)


def equal(gold: object, prediction: str, question: str = "") -> bool:
    """Returns whether the answer `prediction` equals the right answer `gold` mathematically. A word after a
    number is its unit if the word is a known unit (see `quantities.py`) or occurs in `question`. Raises
    ConfigError if `gold` is not a string or number, or is empty or too long. Raises InfrastructureError if
    the comparison fails for a reason other than the answers."""
    return bool(compare(gold, prediction, question))


def compare(gold: object, prediction: str, question: str = "") -> bool | None:
    """Returns whether the answer `prediction` equals the right answer `gold` mathematically, as `equal` does,
    but None if this cannot be decided: the comparison would exceed the limits of time, memory or parts, or an
    answer has a LaTeX command that is not known here. Raises the same errors as `equal`."""
    return measured(gold, prediction, question).equal


def measured(gold: object, prediction: str, question: str = "") -> runner.Outcome:
    """Compares the answer `prediction` with the right answer `gold`. Returns whether they are equal (None if
    this cannot be decided), and the CPU time that the comparison needed. Raises the same errors as
    `equal`."""
    right, other = normal(_gold_text(gold)), normal(prediction)
    if not right:
        raise ConfigError(
            "the answer of the row is empty or too long", where="answer", remedy="correct the row"
        )
    if not other:
        return runner.Outcome(False)
    if compact(right) == compact(other):
        return runner.Outcome(True)
    return _compared_parts(split(right), split(other), question)


def values(answer: str, question: str = "") -> runner.Values:
    """Returns the values of an answer that is one number or expression without a unit, a base or text; no
    values for all others. They show that answers differ, without a comparison of each pair. Raises
    InfrastructureError if the evaluation fails for a reason other than the answer."""
    parts = split(normal(answer))
    text, unit = quantities.without_unit(parts.parts[0], question) if parts.parts else ("", "")
    has_own_rules = unit or "_" in text or r"\text" in text  # by which it can equal other texts
    if parts.kind != "one" or has_own_rules or not is_expression(text):
        return runner.Values(None)
    number = quantities.number(text)
    if number is None:
        return runner.values(runner.Expression(text))
    is_finite = _bits(number) < sys.float_info.max_exp
    return runner.Values((complex(float(number.value)),) * worker.POINTS if is_finite else None)


def _compared_parts(gold: Parts, prediction: Parts, question: str) -> runner.Outcome:
    if gold.kind != prediction.kind or len(gold.parts) != len(prediction.parts):
        return runner.Outcome(False)
    if gold.name and prediction.name and gold.name != prediction.name:
        return runner.Outcome(False)
    if not len(gold.parts) <= MOST_PARTS:
        return runner.Outcome(None)
    leaves: list[_Leaf] = []
    others: list[_Leaf] = []
    tree: Tree = (gold.kind, _trees(gold, question, leaves))
    other: Tree = (gold.kind, _trees(prediction, question, others))
    if len(leaves) != len(others):
        return runner.Outcome(False)
    known = [[_known(leaf, another) for another in others] for leaf in leaves]
    outcome = runner.Outcome(_decided(tree, other, known))
    if outcome.equal is None and len(leaves) <= MOST_LEAVES:
        expressions = [leaf.expression() for leaf in leaves]
        outcome = runner.compare(
            tree, other, expressions, [leaf.expression() for leaf in others], known
        )
    if outcome.equal is False and _is_undecidable([*leaves, *others]):
        return replace(outcome, equal=None)
    return outcome


@dataclass(frozen=True)
class _Leaf:
    """A part of an answer that has no parts of its own."""

    compact: str
    """The text for comparison with other texts (see `notation.compact`)."""
    text: str
    """The text without its unit."""
    unit: str
    """The unit, as `quantities.without_unit` returns it; empty if there is none."""
    number: quantities.Quantity | None
    """The value of the text, if it is a plain number."""
    is_expression: bool
    """Whether the text can be compared as an expression."""
    has_index: bool
    """Whether the text has a number with an index, such as `101_2`. The index can be its base."""
    in_base: int | None
    """The value of a whole number with its base; None for other texts."""

    def expression(self) -> runner.Expression:
        if self.number is None or _bits(self.number) > MOST_BITS:
            return runner.Expression(self.text)
        value = self.number.value
        decimals = self.number.decimals if self.number.is_rounded else None
        latex = rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
        return runner.Expression(
            latex if value.denominator != 1 else str(value.numerator), decimals
        )


def _bits(number: quantities.Quantity) -> int:
    return max(map(int.bit_length, number.value.as_integer_ratio()))


def _trees(parts: Parts, question: str, leaves: list[_Leaf], depth: int = 1) -> list[Tree]:
    """Splits each part of an answer into its own parts, these into theirs, and so on. Appends the parts that
    cannot be split further to `leaves`, and returns one tree for each of `parts`. A word in `question` may be
    a unit. `depth` is the number of collections around the parts."""
    is_ordered = parts.kind not in ("set", "union")
    return [_tree(part, question, leaves, depth, is_ordered=is_ordered) for part in parts.parts]


def _tree(text: str, question: str, leaves: list[_Leaf], depth: int, *, is_ordered: bool) -> Tree:
    """Splits one part of an answer, `text`, as `_trees` splits several, and returns its tree. `is_ordered`
    says whether the part is an element of an ordered collection, such as a tuple.

    In a collection, the variable in `x = (1, 2)` may not be left out, so it belongs to the kind of the tree.
    In an ordered collection, `\\pm 1` is not split into 1 and −1, because a coordinate is one number and not
    a set.
    """
    parts = split(text)
    stands_for_two = is_ordered and parts.has_both_signs
    if parts.kind != "one" and depth < MOST_DEPTH and not stands_for_two:
        return f"{parts.name} {parts.kind}", _trees(parts, question, leaves, depth + 1)
    value, unit = quantities.without_unit(text, question)
    is_formula = parts.kind == "one" and is_expression(value)
    number = quantities.number(value)
    has_index, in_base = quantities.has_index(value), quantities.value_in_base(value)
    leaves.append(_Leaf(compact(text), value, unit, number, is_formula, has_index, in_base))
    return len(leaves) - 1


def _is_undecidable(leaves: Sequence[_Leaf]) -> bool:
    """Returns whether two answers cannot be compared. `leaves` are the smallest parts of both. They cannot be
    compared if all parts are formulas, and at least one part would take too long to evaluate or has a LaTeX
    command that is not known here."""
    return all(_is_formula(leaf.text) for leaf in leaves) and not all(
        leaf.is_expression for leaf in leaves
    )


def _decided(gold: Tree, prediction: Tree, known: Sequence[Sequence[bool | None]]) -> bool | None:
    """Returns whether the answers `gold` and `prediction` are equal. `known[row][column]` says whether leaf
    `row` of the first equals leaf `column` of the second, or is None if only a comparison of expressions can
    decide this. Returns None if the answers' equality depends on such pairs."""
    if same_trees(gold, prediction, lambda row, column: known[row][column] is True):
        return True
    if same_trees(gold, prediction, lambda row, column: known[row][column] is not False):
        return None
    return False


def _known(gold: _Leaf, prediction: _Leaf) -> bool | None:
    """Returns whether two parts of answers are equal, one of the gold (right) answer and one of the
    prediction. Returns None if their texts and numbers cannot decide this, so that the parts must be compared
    as expressions."""
    if gold.compact == prediction.compact:
        return True
    if "%" in (gold.unit, prediction.unit) and gold.unit != prediction.unit:
        return _equal_percent(gold, prediction)
    if not quantities.same_unit(gold.unit, prediction.unit):
        return False
    if gold.in_base is not None and prediction.in_base is not None:
        return gold.in_base == prediction.in_base
    if gold.has_index and prediction.has_index:
        return False  # math-verify takes no notice of the bases
    if gold.number is not None and prediction.number is not None:
        return quantities.equal(gold.number, prediction.number)
    if ("=" in gold.text) != ("=" in prediction.text):
        return False  # the value of an equation is not its right side
    if not (gold.is_expression and prediction.is_expression):
        return False
    return None


def _equal_percent(gold: _Leaf, prediction: _Leaf) -> bool:
    """Returns whether a percentage and a number without a percent sign are equal: 50% equals 50 and 0.5. One
    of the two parts must have the unit `%`. Returns False if a part is no plain number."""
    if gold.number is None or prediction.number is None:
        return False
    percent, plain = gold.number, prediction.number
    if gold.unit != "%":
        percent, plain = plain, percent
    hundredth = quantities.Quantity(percent.value / 100)
    return quantities.equal(percent, plain) or quantities.equal(hundredth, plain)


def is_expression(text: str) -> bool:
    """Returns whether a text can be compared as a mathematical expression: it contains only numbers,
    operators, names of one or two letters, and the LaTeX commands in `_COMMANDS`. Towers of powers,
    factorials of large numbers and large powers are rejected, because their evaluation takes too long."""
    return not _COSTLY.search(text) and _is_formula(text, _COMMANDS)


def _is_formula(text: str, commands: Container[str] | None = None) -> bool:
    """Returns whether a text contains only numbers, operators, names of one or two letters, and LaTeX
    commands in `commands` (None: all LaTeX commands are allowed), with balanced braces that are not nested
    too deeply."""
    position, depth, brackets = 0, 0, 0
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None or len(token["letters"] or "") > 2:
            return False
        if token["command"] and commands is not None and token["command"] not in commands:
            return False
        depth += token[0].count("{") - token[0].count("}")
        brackets += (token[0] in "([") - (token[0] in ")]")
        if depth < 0 or depth + brackets > MOST_DEPTH:
            return False
        position = token.end()
    return depth == 0 and bool(text.strip())


def _gold_text(gold: object) -> str:
    if isinstance(gold, bool) or not isinstance(gold, _NUMBER_TYPES):
        raise ConfigError(
            f"the answer of the row must be a text or a number, not {gold!r:.80}",
            where="answer",
            remedy="correct the row, or choose another checker",
        )
    text = str(gold)
    content = last_boxed(text)
    return text if content is None else content


def math_equal(prediction: str, answer: object, question: str = "") -> Verdict:
    """Checks a mathematical answer: the reward is 1 if the final answer in `prediction` equals `answer`
    mathematically, as `0.5` equals `1/2`, else 0. A word after a number is its unit if the word is a known
    unit or occurs in `question`."""
    right = equal(answer, final_answer(prediction), question)
    return Verdict(float(right), {"accuracy": float(right)})


def math_equal_tool(
    prediction: str, answer: object, tool_calls: int, question: str = ""
) -> Verdict:
    """Checks a mathematical answer of an agent with tools. If no tool call succeeded (`tool_calls` is 0), the
    reward is 0. Otherwise the reward is 1 if the final answer in `prediction` equals `answer`, else 0.1. A
    word after a number is its unit if the word is a known unit or occurs in `question`."""
    right = equal(answer, final_answer(prediction), question)
    reward = (1.0 if right else 0.1) if tool_calls > 0 else 0.0
    return Verdict(reward, {"accuracy": float(right)})


def math_equal_think(
    prediction: str,
    answer: object,
    tool_calls: int,
    turns: int,
    thoughts: Sequence[str],
    question: str = "",
) -> Verdict:
    """Checks a mathematical answer of an agent with tools that must think in each turn. The reward is 0 if no
    tool call succeeded (`tool_calls` is 0), if `turns` is 0, or if fewer than `turns` of the `thoughts` have
    a word. Otherwise the reward is 1 if the final answer in `prediction` equals `answer`, else 0.1. A word
    after a number is its unit if the word is a known unit or occurs in `question`."""
    verdict = math_equal_tool(prediction, answer, tool_calls, question)
    thinking = [thought for thought in thoughts if re.search(r"\w", thought)]
    always = turns > 0 and len(thinking) >= turns
    metrics = {**verdict.metrics, "thinks": float(always)}
    return Verdict(verdict.reward if always else 0.0, metrics)


def math_string_equal(prediction: str, answer: object) -> Verdict:
    """Checks an integer answer: the reward is 1 if the last integer in the final answer equals the last
    integer in `answer`, else 0. Raises ConfigError if `answer` has no number, or if its last number is not an
    integer."""
    right = last_integer(without_separators(_gold_text(answer)))
    if right is None:
        raise ConfigError(
            f"{answer!r:.80} is no integer", where="answer", remedy="choose the checker math_equal"
        )
    same = last_integer(without_separators(final_answer(prediction))) == right
    return Verdict(float(same), {"accuracy": float(same)})


@pays(lowest=-1.0)
def agent0(prediction: str, answer: object, question: str = "") -> Verdict:
    """Checks a mathematical answer as the project Agent0 does: the reward is 1 if the last `\\boxed{…}` in
    `prediction` outside thoughts equals `answer`, else −1. A word after a number is its unit if the word is a
    known unit or occurs in `question`."""
    boxed: Any = last_boxed(outside_thoughts(prediction))
    right = bool(boxed) and equal(answer, boxed, question)
    return Verdict(1.0 if right else -1.0, {"accuracy": float(right), "boxed": float(bool(boxed))})
