"""Renders the tokens of a turn as HTML, with each token's log-probabilities, advantage and rewards in
training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

import numpy as np

from air.trajectories.trained_tokens import Message
from air.view.index.facts import Place
from air.view.index.turn_tokens import TurnTokens
from air.view.render.markup import chip, figure, table, text
from air.view.render.token_rows import TokenRow, compared, paid_by, reward_of, rows_of, summary

MOST = 1000
"""The maximum number of tokens of a reply that are shown."""
LEGEND = (
    "The darker a token, the less likely it was. A green line: positive advantage; a red line: negative; "
    "none: not trained. Grey: masked."
)


def turn(tokens: TurnTokens, validates: Sequence[Place]) -> str:
    """Returns the HTML of the tokens of a turn. `validates` has the `Place` (with the score) of each grading
    in the episode, in order."""
    reply, pieces = tokens.reply, tokens.content.pieces
    rows = rows_of(reply, pieces)
    paid = paid_by(tokens.payments, validates)
    return (
        f'<div class="air tokens"><div class="air facts">{_chips(tokens)}</div>'
        f"{_reward_html(tokens, paid)}{_context(tokens.context, pieces)}"
        f'<pre class="strip">{"".join(map(_span, rows[:MOST]))}</pre>{_left_out(len(rows))}'
        f'<div class="note">{LEGEND}</div>'
        '<details class="fold"><summary>each sampled token</summary>'
        f"{_table(rows, paid, tokens)}</details></div>"
    )


def _chips(tokens: TurnTokens) -> str:
    trained = bool((tokens.reply.advantages != 0).any())
    kinds = {"sampled": "blue", "trained": "green" if trained else "red", "temperature": "quiet"}
    parts = summary(tokens)
    chips = "".join(chip(words, kinds.get(name, "")) for name, words in parts.items())
    return f'<span class="title">tokens of step {tokens.content.step}</span>{chips}'


def _reward_html(tokens: TurnTokens, paid: Sequence[str]) -> str:
    """Returns the HTML of a sentence about the reward from which the reply's advantage was computed, followed
    by the texts `paid`, one for each term of this reward."""
    chips = "".join(chip(each) for each in paid) or chip("nothing was paid")
    return f'<div class="air facts"><span class="note">{text(compared(tokens))}</span>{chips}</div>'


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


def _span(row: TokenRow) -> str:
    """Returns the HTML of one token within the text of the reply. The less likely the token was, the darker
    is its background."""
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


def _table(rows: Sequence[TokenRow], paid: Sequence[str], tokens: TurnTokens) -> str:
    sampled = [row for row in rows if not row.masked]
    heads = ("token", "reward", "log p sampler", "log p trainer", "ratio", "advantage", "id")
    cells = [
        (row.name, reward_of(row, paid, tokens), *row.figures(), str(row.token))
        for row in sampled[:MOST]
    ]
    return table(heads, cells, left=2) + _left_out(len(sampled))
