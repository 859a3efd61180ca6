"""Answer checkers for short answers in words: exact match and word F1 with the normalisation of the benchmark
SQuAD, and variants of these.

The normalisation: lower case, no ASCII punctuation, no articles, one space between words. If the normalised
gold (right) answer is empty (`The The!`), both answers are compared with their articles and punctuation. An
empty answer is never right.

There is also the checker `choice` of multiple-choice questions. The right option is named by its letter or
its text in the field `answer`, or by its letter in the field `answer_letter`, which takes precedence. So the
rows of the data sets MMLU-Pro and SuperGPQA are accepted as they are.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from air.errors import ConfigError
from air.rewards.answers.extraction import final_answer, last_boxed, last_tagged, outside_thoughts
from air.rewards.answers.verdict import Verdict

Gold = str | int | float | Sequence[str]
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_CLOSED = {"yes", "no", "noanswer"}
"""Normalised answers that get no partial credit for common words: an answer equals them completely, or is
wrong."""
_VQA_AGREEING = 3
"""The number of annotators' answers that must equal an answer for a soft accuracy of 1, as in VQA."""
LETTERS = "ABCDEFGHIJ"
"""The letters of the options of a multiple-choice question."""
_WRAPPED = re.compile(
    r"\\(?:text|textbf|mathrm|mathbf)\s*\{(?P<inner>[^{}]*)\}|\$(?P<math>[^$]*)\$"
)
_LETTERED = re.compile(
    r"(?:\((?P<round>[A-Ja-j])\)|(?P<bare>[A-Ja-j])(?P<mark>[.:)])?)(?P<rest>.*)"
)


@dataclass(frozen=True)
class Overlap:
    """The word overlap of an answer (the prediction) with a gold (right) answer. `em` is 1 for an exact
    match, else 0."""

    f1: float = 0.0
    precision: float = 0.0
    recall: float = 0.0
    em: float = 0.0


def normalised(text: str) -> str:
    """Returns the text in the normalisation of the benchmark SQuAD: in lower case, without ASCII punctuation
    and articles, and with one space between words. `The Cat!` becomes `cat`."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def overlap(prediction: str, gold: str) -> Overlap:
    """Returns precision, recall and F1 of the words of `prediction` against the words of the right answer
    `gold`, and whether the two match exactly after normalisation."""
    one, other = normalised(prediction), normalised(gold)
    if not other:
        one, other = (" ".join(text.lower().split()) for text in (prediction, gold))
    if not one or not other:
        return Overlap()
    if one == other:
        return Overlap(1.0, 1.0, 1.0, 1.0)
    if one in _CLOSED or other in _CLOSED:
        return Overlap()
    words, right = one.split(), other.split()
    same = sum((Counter(words) & Counter(right)).values())
    if not same:
        return Overlap()
    precision, recall = same / len(words), same / len(right)
    return Overlap(2 * precision * recall / (precision + recall), precision, recall)


def qa_f1(prediction: str, answer: Gold) -> Verdict:
    """Checks a short answer: the reward is the word F1 of the final answer in `prediction` with the gold
    (right) answer, or the highest F1 if there are several gold answers."""
    best = _best(prediction, texts(answer, "answer"))
    metrics = {"f1": best.f1, "em": best.em, "precision": best.precision, "recall": best.recall}
    return Verdict(best.f1, metrics)


def qa_em(prediction: str, golden_answers: Gold) -> Verdict:
    """Checks a short answer: the reward is 1 if the final answer in `prediction` exactly matches one of
    `golden_answers` (after normalisation), else 0."""
    best = _best(prediction, texts(golden_answers, "golden_answers"))
    return Verdict(best.em, {"em": best.em, "f1": best.f1})


def qa_em_format(response: str, golden_answers: Gold) -> Verdict:
    """Checks a short answer and its format. The reward is 1 if the last reply ends in `<answer>…</answer>`
    with an exact match of one of `golden_answers`, 0.1 with any other answer in these tags, and 0 if the
    reply does not end in exactly one such answer outside its thoughts."""
    text = outside_thoughts(response).strip()
    tags = [text.lower().count(tag) for tag in ("<answer>", "</answer>")]
    formed = tags == [1, 1] and text.lower().endswith("</answer>") and bool(last_tagged(text))
    gold = texts(golden_answers, "golden_answers")
    em = _best(text, gold).em if formed else 0.0
    return Verdict((1.0 if em else 0.1) if formed else 0.0, {"em": em, "format": float(formed)})


def ok_vqa(prediction: str, answers: Gold) -> Verdict:
    """Checks a short answer to a question that several annotators answered: the reward is the highest word F1
    of the final answer with one of the annotators' `answers`. The metric `soft_accuracy` is defined as in the
    benchmark VQA: one third for each annotator whose answer matches exactly, at most 1."""
    gold = texts(answers, "answers")
    given = final_answer(prediction)
    agreeing = sum(overlap(given, one).em for one in gold)
    best = _best(prediction, gold)
    soft = min(1.0, agreeing / _VQA_AGREEING)
    return Verdict(best.f1, {"f1": best.f1, "em": best.em, "soft_accuracy": soft})


def infoseek(
    prediction: str, answer: Gold, tool_calls: int, answer_eval: Sequence[object] = ()
) -> Verdict:
    """Checks a short answer of an agent with tools: the reward is 0.2 if at least two tool calls succeeded,
    plus 0.8 times the highest word F1 of the final answer with one of the strings in `answer` and
    `answer_eval`."""
    more = [one for one in answer_eval if isinstance(one, str)]
    best = _best(prediction, [*texts(answer, "answer"), *more])
    used = float(tool_calls >= 2)
    return Verdict(0.2 * used + 0.8 * best.f1, {"f1": best.f1, "em": best.em, "used_tools": used})


def texts(gold: Gold, field: str) -> list[str]:
    """Returns the gold (right) answers in a row's field as a list of strings. `field` is the name of the
    field in error messages. Raises ConfigError if there is no answer, or if an answer is malformed."""
    answers = [gold] if isinstance(gold, str | int | float) else list(gold or ())
    good = all(isinstance(a, str | int | float) and not isinstance(a, bool) for a in answers)
    if not answers or not good or not all(str(a).strip() for a in answers):
        raise ConfigError(
            f"must be a text, a number or a list of them, not {gold!r:.80}",
            where=f"field {field} of the row",
            remedy="correct the row, or choose another checker",
        )
    return [str(answer) for answer in answers]


def _best(prediction: str, gold: Sequence[str]) -> Overlap:
    given = final_answer(prediction)
    return max((overlap(given, one) for one in gold), key=lambda o: (o.f1, o.em))


def with_letters(options: object) -> str:
    """Returns the options of a multiple-choice question as one string with a line `A. text` for each option.
    Raises ConfigError if `options` is not a list of 2 to 10 different texts."""
    texts = _texts(options)
    return "\n".join(f"{LETTERS[index]}. {text}" for index, text in enumerate(texts))


def choice(prediction: str, options: object, answer: object, answer_letter: object = "") -> Verdict:
    """Checks the answer to a multiple-choice question: the reward is 1 if the last `\\boxed{…}` outside
    thoughts chooses the right option, else 0. An option is chosen by its letter, by its text, or by both:
    `B`, `(B)`, `B. Paris` or `Paris`. Raises ConfigError if the row does not name exactly one right
    option."""
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
    """Returns the index of the right option of a multiple-choice question. `texts` are the options. Raises
    ConfigError if no option is right, or if `answer` is the letter of one option and the text of another
    option."""
    named = answer_letter or answer
    found: set[int] = set()
    if isinstance(named, str):
        letter = named.strip()
        if len(letter) == 1 and letter in LETTERS[: len(texts)]:
            found.add(LETTERS.index(letter))
        if not answer_letter and named in texts:
            found.add(texts.index(named))
    if len(found) == 1:
        return found.pop()
    problem = "names two options" if found else "is neither the letter nor the text of an option"
    raise ConfigError(
        f"the answer {named!r:.60} {problem}",
        where="answer",
        remedy="name the letter in `answer_letter`, or remove the row",
    )


def _chosen(texts: Sequence[str], boxed: str) -> int | None:
    """Returns the index of the option that `boxed`, the content of the answer's `\\boxed{…}`, chooses by
    letter or text; None if it chooses none. `texts` are the options."""
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
    """Returns the text of an option or answer without wrappers such as `\\text{…}`, without a final point,
    and with single spaces between words."""
    text = _WRAPPED.sub(lambda match: _inner(match), text)
    return " ".join(text.split()).removesuffix(".").rstrip()


def _inner(match: re.Match[str]) -> str:
    return match["math"] if match["inner"] is None else match["inner"]
