"""Renders the tokens of a turn as HTML: what training did with each of them, and what paid for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from air.trajectories.trained_tokens import Floats, Message, Payment
from air.view.index.facts import Place
from air.view.index.turn_tokens import TurnTokens
from air.view.render.clean import clean
from air.view.render.markup import chip, figure, table, text

MOST = 1000
"""The largest number of a reply's tokens that are shown."""
LEGEND = (
    "The darker a token, the less likely it was. A green line: positive advantage; a red line: negative; "
    "none: not trained. Grey: masked."
)
_MARKS = str.maketrans({" ": "·", "\n": "⏎", "\t": "⇥"})


def turn(tokens: TurnTokens, validates: Sequence[Place]) -> str:
    """Returns the HTML of a turn's tokens; `validates` are all validates of the episode, in order."""
    reply, pieces = tokens.reply, tokens.content.pieces
    rows = list(_rows(reply, pieces))
    paid = _paid(tokens.payments, validates)
    return (
        f'<div class="air tokens"><div class="air facts">{_chips(tokens)}</div>'
        f"{_cause(tokens, paid)}{_context(tokens.context, pieces)}"
        f'<pre class="strip">{"".join(map(_span, rows[:MOST]))}</pre>{_left_out(len(rows))}'
        f'<div class="note">{LEGEND}</div>'
        '<details class="fold"><summary>each sampled token</summary>'
        f"{_table(rows, paid, tokens)}</details></div>"
    )


@dataclass(frozen=True)
class _Row:
    """One token of a reply. The numbers are None for a masked token, and where they are unknown."""

    token: int
    piece: str
    masked: bool
    logprob: float | None = None
    trainer: float | None = None
    """The trainer's log-probability."""
    ratio: float | None = None
    advantage: float | None = None

    @property
    def name(self) -> str:
        """The token's text in one line, with marks for spaces, tabs and line breaks."""
        return self.piece.translate(_MARKS)


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _rows(message: Message, pieces: Mapping[int, str]) -> Iterator[_Row]:
    columns = (message.logprobs, message.trainer_logprobs, message.ratios, message.advantages)
    numbers = zip(*columns, strict=True)
    for token, sampled in zip(message.token_ids.tolist(), message.sampled, strict=True):
        piece = clean(pieces.get(token, f"<{token}>"))
        if sampled:
            yield _Row(token, piece, False, *map(_number, next(numbers)))
        else:
            yield _Row(token, piece, True)


def _chips(tokens: TurnTokens) -> str:
    reply = tokens.reply
    masked = sum(len(m.token_ids) for m in tokens.context) + int((~reply.sampled).sum())
    trained = int((reply.advantages != 0).sum())
    sampled = len(reply.logprobs)
    words = [
        chip(f"{sampled} sampled", "blue"),
        chip(f"{trained} trained", "green" if trained else "red"),
        chip(f"{masked} masked"),
        chip(f"advantage {_span_of(reply.advantages, '+.4g')}"),
        chip(f"ratio {_span_of(reply.ratios, '.5g')}"),
        chip(f"log p {figure(_number(float(reply.logprobs.sum())), '.4g')} in all"),
        chip(f"temperature {figure(tokens.content.temperature)}", "quiet"),
    ]
    title = f'<span class="title">tokens of step {tokens.content.step}</span>'
    return title + "".join(words)


def _span_of(values: Floats, form: str) -> str:
    """Returns the smallest and the largest of the finite values as text."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return "–"
    low, high = figure(float(finite.min()), form), figure(float(finite.max()), form)
    return low if low == high else f"{low} to {high}"


def _paid(payments: Sequence[Payment], validates: Sequence[Place]) -> list[str]:
    """Returns a sentence for each payment of a term that is not 0."""
    return [
        f"{name} {figure(amount, '+.4g')} ({_where(payment, validates)})"
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


def _cause(tokens: TurnTokens, paid: Sequence[str]) -> str:
    """Returns the terms of the reward that the advantage counts."""
    total = sum(sum(payment.terms.values()) for payment in tokens.payments)
    words = f"The advantage compares this reward, {figure(total, '+.4g')}, with the group's other episodes:"
    if tokens.content.shuffled:
        words = "The rewards were shuffled in the group (embedded.shuffle_rewards). The turn's own reward:"
    chips = "".join(chip(each) for each in paid) or chip("nothing was paid")
    return f'<div class="air facts"><span class="note">{text(words)}</span>{chips}</div>'


def _context(messages: Sequence[Message], pieces: Mapping[int, str]) -> str:
    ids = [token for message in messages for token in message.token_ids.tolist()]
    if not ids:
        return ""
    words = "".join(pieces.get(token, f"<{token}>") for token in ids)
    name = f"masked: {len(ids)} tokens that the model read before this reply; they are not trained"
    return (
        f'<details class="fold"><summary>{text(name)}</summary>'
        f'<pre class="masked">{text(words)}</pre></details>'
    )


def _span(row: _Row) -> str:
    """Returns the HTML of one token in its place. The less likely the token was, the darker it is."""
    shown = escape(row.piece.replace("\n", "⏎\n"), quote=True)
    if row.masked:
        return f'<span class="masked" title="masked: not trained">{shown}</span>'
    surprise = 0.0 if row.logprob is None else 1 - float(np.exp(row.logprob))
    tip = (
        f"log p {figure(row.logprob, '.4g')} · trainer {figure(row.trainer, '.4g')} · "
        f"ratio {figure(row.ratio, '.5g')} · advantage {figure(row.advantage, '+.4g')} · id {row.token}"
    )
    kind = "up" if (row.advantage or 0) > 0 else "down" if (row.advantage or 0) < 0 else "none"
    colour = f"background:rgba(224,150,47,{0.75 * surprise:.2f})"
    return f'<span class="token {kind}" style="{colour}" title="{escape(tip)}">{shown}</span>'


def _left_out(count: int) -> str:
    return f'<div class="note">{count - MOST} tokens more</div>' if count > MOST else ""


def _table(rows: Sequence[_Row], paid: Sequence[str], tokens: TurnTokens) -> str:
    sampled = [row for row in rows if not row.masked]
    reward = "; ".join(paid) or "nothing was paid"
    heads = ("token", "reward", "log p sampler", "log p trainer", "ratio", "advantage", "id")
    cells = [
        (
            row.name,
            "not trained"
            if not row.advantage
            else "shuffled"
            if tokens.content.shuffled
            else reward,
            figure(row.logprob, ".5g"),
            figure(row.trainer, ".5g"),
            figure(row.ratio, ".6g"),
            figure(row.advantage, "+.4g"),
            str(row.token),
        )
        for row in sampled[:MOST]
    ]
    return table(heads, cells, left=2) + _left_out(len(sampled))
