"""Multiple choice: shows the options of a question with letters, and checks which option an answer chooses.

The right option is named by its letter or its text in the field `answer`, or by its letter in the field
`answer_letter`, which takes precedence. So the rows of MMLU-Pro and SuperGPQA are accepted as they are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from air.errors import ConfigError
from air.rewards.answers.extraction import last_boxed, outside_thoughts
from air.rewards.answers.verdict import Verdict

LETTERS = "ABCDEFGHIJ"
_WRAPPED = re.compile(
    r"\\(?:text|textbf|mathrm|mathbf)\s*\{(?P<inner>[^{}]*)\}|\$(?P<math>[^$]*)\$"
)
_LETTERED = re.compile(
    r"(?:\((?P<round>[A-Ja-j])\)|(?P<bare>[A-Ja-j])(?P<mark>[.:)])?)(?P<rest>.*)"
)


def with_letters(options: object) -> str:
    """Returns the options as lines `A. text`. Raises ConfigError if `options` is not a list of 2 to 10
    different texts."""
    texts = _texts(options)
    return "\n".join(f"{LETTERS[index]}. {text}" for index, text in enumerate(texts))


def choice(prediction: str, options: object, answer: object, answer_letter: object = "") -> Verdict:
    """The checker: the reward is 1 if the last `\\boxed{…}` outside thoughts chooses the right option, else
    0. An option is chosen by its letter, by its text, or by both: `B`, `(B)`, `B. Paris` or `Paris`."""
    texts = _texts(options)
    right = _right(texts, answer, answer_letter)
    boxed = last_boxed(outside_thoughts(prediction))
    chosen = _chosen(texts, boxed) if boxed else None
    correct = float(chosen == right)
    return Verdict(correct, {"accuracy": correct, "chosen": float(chosen is not None)})


def _texts(options: object) -> Sequence[str]:
    texts = [str(one) for one in options] if isinstance(options, list | tuple) else []
    if not 2 <= len(texts) <= len(LETTERS) or len(set(texts)) < len(texts):
        raise ConfigError(
            f"the options {options!r:.60} are not a list of 2 to {len(LETTERS)} different texts",
            where="options",
            remedy="correct or remove the row",
        )
    return texts


def _right(texts: Sequence[str], answer: object, answer_letter: object) -> int:
    """Returns the index of the right option."""
    letter = str(answer_letter or answer).strip()
    if len(letter) == 1 and letter in LETTERS[: len(texts)]:
        return LETTERS.index(letter)
    if not answer_letter and str(answer) in texts:
        return texts.index(str(answer))
    raise ConfigError(
        f"the answer {letter!r:.60} is neither the letter nor the text of an option",
        where="answer",
        remedy="correct or remove the row",
    )


def _chosen(texts: Sequence[str], boxed: str) -> int | None:
    """Returns the index of the option that the content of a box chooses, or None."""
    text = _plain(boxed)
    if match := _LETTERED.fullmatch(text):
        letter, rest = (match["round"] or match["bare"]).upper(), match["rest"].strip()
        index = LETTERS.index(letter)
        is_marked = match["round"] or match["mark"]
        if index < len(texts) and (not rest or (is_marked and rest == _plain(texts[index]))):
            return index
    equal = [index for index, one in enumerate(texts) if _plain(one) == text]
    return equal[0] if len(equal) == 1 else None


def _plain(text: str) -> str:
    """Returns a text without wrappers such as `\\text{…}`, a final point, and differences in spaces."""
    text = _WRAPPED.sub(lambda match: _inner(match), text)
    return " ".join(text.split()).removesuffix(".").rstrip()


def _inner(match: re.Match[str]) -> Any:
    return match["math"] if match["inner"] is None else match["inner"]
