"""Prints the tokens of one turn on a terminal, with each token's log-probabilities, advantage and rewards in
training."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from air.view.index.episode_file import EpisodeFile
from air.view.index.items import Item
from air.view.index.turn_tokens import TurnTokens, of_turn, training_step
from air.view.render.clean import one_line
from air.view.render.token_rows import TokenRow, compared, paid_by, reward_of, rows_of, summary

MOST = 300
"""The maximum number of sampled tokens of a reply that are printed, unless the user asks for everything."""
_NUMBERS = ("log p sampler", "log p trainer", "ratio", "advantage", "id")


def show(out: Console, file: EpisodeFile, item: Item, *, most: int | None = MOST) -> None:
    """Prints the first `most` tokens that the model sampled in a turn (None: all). If no tokens are recorded,
    prints the reason. `file` is the recording of the episode, and `item` has the lines of the turn."""
    if item.step is None:
        return
    run = file.path.resolve().parent.parent
    episode, start = file.facts.episode, file.head()["start"]
    tokens = of_turn(run, episode, training_step(run, episode), start, item.step)
    if not isinstance(tokens, TurnTokens):
        out.print(Text(one_line(tokens, 400), "bright_black"))
        return
    paid = paid_by(tokens.payments, [p for p in file.places if p.kind == "validate"])
    out.print(Text(f"tokens of step {tokens.content.step}", "bold"))
    out.print(Text(" · ".join(summary(tokens).values()), "bright_black"))
    out.print(Text(f"{compared(tokens)} {'; '.join(paid) or 'nothing was paid'}"))
    sampled = [row for row in rows_of(tokens.reply, tokens.content.pieces) if not row.masked]
    out.print(_table(sampled[:most], paid, tokens))
    if most is not None and len(sampled) > most:
        out.print(Text(f"{len(sampled) - most} tokens more: add --full", "bright_black"))


def _table(rows: list[TokenRow], paid: list[str], tokens: TurnTokens) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, header_style="bright_black")
    table.add_column("token", no_wrap=True)
    for name in _NUMBERS:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("reward", no_wrap=True, overflow="ellipsis")
    for row in rows:
        numbers = (*row.figures(), str(row.token))
        reward = one_line(reward_of(row, paid, tokens), 200)
        table.add_row(Text(one_line(row.name, 30)), *numbers, Text(reward))
    return table
