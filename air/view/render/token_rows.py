"""Prepares the tokens of a turn for display: lists them with their log-probabilities, advantages and rewards
in training. The app, the exported page and the terminal use it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from air.trajectories.trained_tokens import Floats, Message, Payment
from air.view.index.facts import Place
from air.view.index.turn_tokens import TurnTokens
from air.view.render.clean import clean, one_line
from air.view.render.markup import figure

_MARKS = str.maketrans({" ": "·", "\n": "⏎", "\t": "⇥"})


@dataclass(frozen=True)
class TokenRow:
    """One token of a reply, with its text (`piece`) and its numbers in training. The numbers are None if they
    are unknown, or if the token is masked (not trained)."""

    token: int
    piece: str
    masked: bool
    logprob: float | None = None
    trainer: float | None = None
    """The log-probability that the trainer computed for the token; None if it was not recorded. `logprob` is
    that of the sampler, which generated the token; `ratio` is the trainer's probability divided by the
    sampler's."""
    ratio: float | None = None
    advantage: float | None = None

    @property
    def name(self) -> str:
        """The token's text as one line, in which visible marks replace spaces, tabs and line breaks."""
        return self.piece.translate(_MARKS)

    def figures(self) -> tuple[str, str, str, str]:
        """Returns four numbers as strings: the token's log-probability in the sampler, that in the trainer,
        the ratio of the two probabilities, and the advantage."""
        return (
            figure(self.logprob, ".5g"),
            figure(self.trainer, ".5g"),
            figure(self.ratio, ".6g"),
            figure(self.advantage, "+.4g"),
        )


def rows_of(message: Message, pieces: Mapping[int, str]) -> list[TokenRow]:
    """Returns a row for each token of a message. `pieces` maps each token id to its text."""
    return list(_rows(message, pieces))


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _rows(message: Message, pieces: Mapping[int, str]) -> Iterator[TokenRow]:
    columns = (message.logprobs, message.trainer_logprobs, message.ratios, message.advantages)
    numbers = zip(*columns, strict=True)
    for token, sampled in zip(message.token_ids.tolist(), message.sampled, strict=True):
        piece = clean(pieces.get(token, f"<{token}>"))
        if sampled:
            yield TokenRow(token, piece, False, *map(_number, next(numbers)))
        else:
            yield TokenRow(token, piece, True)


def summary(tokens: TurnTokens) -> dict[str, str]:
    """Returns a summary of the tokens of a turn: a dict with the short texts `sampled`, `trained` and
    `masked` (how many tokens are so; masked ones are not trained), `advantage`, `ratio`, `logprob` and
    `temperature`."""
    reply = tokens.reply
    masked = sum(len(m.token_ids) for m in tokens.context) + int((~reply.sampled).sum())
    return {
        "sampled": f"{len(reply.logprobs)} sampled",
        "trained": f"{int((reply.advantages != 0).sum())} trained",
        "masked": f"{masked} masked",
        "advantage": f"advantage {_span_of(reply.advantages, '+.4g')}",
        "ratio": f"ratio {_span_of(reply.ratios, '.5g')}",
        "logprob": f"log p {figure(_number(float(reply.logprobs.sum())), '.4g')} in all",
        "temperature": f"temperature {figure(tokens.content.temperature)}",
    }


def compared(tokens: TurnTokens) -> str:
    """Returns a sentence for the user about the reward from which the reply's advantage was computed: its
    amount, which was compared with the rewards of the group's other episodes, or that the rewards were
    shuffled among the episodes."""
    if tokens.content.shuffled:
        return "The rewards were shuffled in the group (embedded.shuffle_rewards). The turn's own reward:"
    total = sum(sum(payment.terms.values()) for payment in tokens.payments)
    reward = figure(total, "+.4g")
    return f"The advantage compares this reward, {reward}, with the group's other episodes:"


def reward_of(row: TokenRow, paid: Sequence[str], tokens: TurnTokens) -> str:
    """Returns a text about the reward from which a token's advantage was computed: its terms (the texts
    `paid`), joined. If the token is not trained, if the rewards were shuffled among the episodes (setting
    `embedded.shuffle_rewards`), or if there is no term, the text says so instead."""
    if not row.advantage:
        return "not trained"
    return "shuffled" if tokens.content.shuffled else "; ".join(paid) or "nothing was paid"


def _span_of(values: Floats, form: str) -> str:
    """Returns the smallest and the largest finite value in `values` as text, such as `1 to 2`, in the format
    `form`; only one number if they are equal."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return "–"
    low, high = figure(float(finite.min()), form), figure(float(finite.max()), form)
    return low if low == high else f"{low} to {high}"


def paid_by(payments: Sequence[Payment], validates: Sequence[Place]) -> list[str]:
    """Returns a text for each term of the reward in `payments` that is not 0: its name, its amount, and the
    turn or grading that earned it. `validates` has the `Place` (with the score) of each grading in the
    episode, in order."""
    return [
        f"{one_line(name, 40)} {figure(amount, '+.4g')} ({_where(payment, validates)})"
        for payment in payments
        for name, amount in payment.terms.items()
        if amount
    ]


def _where(payment: Payment, validates: Sequence[Place]) -> str:
    if payment.validate is None:
        return f"turn {payment.turn}"
    place = f"validate {payment.validate}, turn {payment.turn}"
    if payment.validate > len(validates):
        return place
    score = validates[payment.validate - 1].score
    return f"{place}, {'no score' if score is None else f'score {figure(score)}'}"
