"""Exports a training run and its recorded episodes as one HTML page that works without a server, a network or
other files.

All recorded text is escaped. As a second protection, the page's content security policy allows only the
page's own script (by its hash), and styles and images within the page. So even unescaped text could not run a
script, or load or send data.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from air.errors import UsageError
from air.view.index.items import Item, items
from air.view.index.run_discovery import Run
from air.view.index.run_index import Episode, RunIndex
from air.view.index.turn_tokens import TurnTokens, of_turn
from air.view.render import charts, markup, metric_series, overview, svg, token_markup
from air.view.render.charts import Chart
from air.view.render.markup import chip, figure, line, seconds, text

MOST_TURNS = 300
"""The page shows at most this number of turns of an episode. If there are more, a note says how many."""
TOKEN_BYTES = 8_000_000
"""The maximum total size, in bytes, of the parts of the page that show tokens. One token takes about 600
bytes."""
_WIDE = {"advantage", "step", "last", "test", "turns", "errors", "seconds", "episode"}
"""The columns of the table of episodes that are hidden on a narrow screen."""
_HEADS = (
    "task",
    "reward",
    "advantage",
    "step",
    "best",
    "last",
    "test",
    "turns",
    "errors",
    "seconds",
    "end",
    "episode",
)


def write(run: Run, index: RunIndex, episodes: Sequence[Episode], out: Path) -> None:
    """Writes an HTML page about a training run to the file `out`. Of the run's episodes, the page shows those
    in `episodes`, turn by turn.

    An existing file is replaced only when the new page is complete. Raises UsageError if the file cannot be
    written.
    """
    part = out.with_name(f".{out.name}.part")
    try:
        with part.open("w", encoding="utf-8", errors="replace") as file:
            for piece in page(run, index, episodes):
                file.write(piece)
        part.replace(out)
    except OSError as error:
        part.unlink(missing_ok=True)
        problem = os.strerror(error.errno or 0)
        raise UsageError(f"cannot be written: {problem}", where=str(out)) from error


def page(
    run: Run, index: RunIndex, episodes: Sequence[Episode], *, token_bytes: int = TOKEN_BYTES
) -> Iterator[str]:
    """Yields the HTML page about a run in pieces: the run's main numbers, its tasks, and `episodes` turn by
    turn.

    `token_bytes` is the maximum total size, in bytes, of the parts of the page that show tokens.
    """
    folder = Path(__file__).parent
    script = (folder / "export.js").read_text(encoding="utf-8")
    styles = markup.CSS.read_text(encoding="utf-8") + (folder / "export.css").read_text("utf-8")
    yield _head(run.name, styles, script)
    yield from _figures(run, index)
    if episodes:
        yield _table(episodes, index.count())
        yield "<h2>episodes, turn by turn</h2>"
    tokens = _Tokens(index, token_bytes)
    for number, episode in enumerate(episodes):
        yield _episode(index, episode, f"e{number}", tokens)
    yield f"</div><script>{script}</script></body></html>\n"


class _Tokens:
    """Makes the HTML that shows the tokens of turns, with a limit of `room` bytes for all turns together.
    Once a turn would exceed the limit, this turn and all later ones get a note instead."""

    def __init__(self, index: RunIndex, room: int) -> None:
        self._index = index
        self._room = room

    def of(self, one: Episode, start: Mapping[str, Any], item: Item) -> str:
        """Returns the HTML with the tokens of one turn: an empty string if no tokens are recorded, a note if
        the limit on the size is reached. `one` is the episode, `item` has the turn's recorded lines, and
        `start` is the first line of the episode's trajectory (its recording)."""
        if item.step is None:
            return ""
        run = self._index.file.folder
        tokens = of_turn(run, one.facts.episode, one.step, start, item.step)
        if not isinstance(tokens, TurnTokens):
            return ""
        html = token_markup.turn(tokens, self._index.curve(one)) if self._room >= 0 else ""
        self._room -= len(html.encode(errors="replace"))
        if self._room < 0:  # nor has a later turn: a page with gaps would be hard to read
            return '<div class="note">no room for more tokens on this page: see air view</div>'
        return (
            f'<details class="fold tokens-of-turn"><summary>tokens of step {tokens.content.step}</summary>'
            f"{html}</details>"
        )


def _head(title: str, styles: str, script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{line(title, 120)}</title><style>{styles}</style></head>"
        f'<body><div class="air"><h1>{line(title, 120)}</h1>'
    )


def _figures(run: Run, index: RunIndex) -> Iterator[str]:
    metrics, totals = index.metrics(), index.totals()
    yield markup.tiles(overview.tiles(run, metrics, totals, index.models()))
    yield '<div class="two">'
    for chart in charts.main(metrics):
        yield f"<div><h2>{line(chart.title, 80)}</h2>{svg.curves(chart)}</div>"
    yield "</div>"
    if not totals["episodes"]:
        return
    yield "<h2>tasks</h2>"
    yield markup.tasks(index.by_task())
    yield "<h2>where the episodes' time went</h2>"
    yield markup.split(metric_series.times(totals))


def _table(episodes: Sequence[Episode], of: int) -> str:
    names = sorted({one.facts.task for one in episodes if one.facts.task})
    options = "".join(f'<option value="{text(name)}">{line(name, 80)}</option>' for name in names)
    heads = "".join(f"<th{_wide(name)}>{name}</th>" for name in _HEADS)
    rows = "".join(_row(one, f"e{number}") for number, one in enumerate(episodes))
    heading = f"{len(episodes)} of {of} episodes" if len(episodes) < of else f"{of} episodes"
    return (
        f'<h2>{heading}</h2><div class="filters"><select id="task"><option value="">all tasks</option>'
        f'{options}</select><input id="words" placeholder="search">'
        '<label><input type="checkbox" id="errors"> errors</label><span class="note" id="count"></span>'
        '<span class="note">click a head to sort, a row to open</span></div>'
        f'<table id="episodes"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>'
    )


def _wide(name: str) -> str:
    return ' class="wide"' if name in _WIDE else ""


def _row(one: Episode, name: str) -> str:
    facts = one.facts
    cells: list[tuple[object, str]] = [
        (facts.task or "", line(facts.task or "–", 60)),
        *((value, figure(value, "+z.3f")) for value in (facts.reward, one.advantage)),
        (one.step, "–" if one.step is None else str(one.step)),
        *((value, figure(value)) for value in (facts.best, facts.score, facts.test)),
        (facts.turns, str(facts.turns)),
        (facts.errors, str(facts.errors)),
        (facts.seconds, figure(facts.seconds, ".1f")),
        (facts.ending, line(facts.ending, 80)),
        (one.name, line(one.name, 60)),
    ]
    row = "".join(
        f'<td{_wide(name)} data-value="{"" if value is None else text(str(value))}">{cell}</td>'
        for name, (value, cell) in zip(_HEADS, cells, strict=True)
    )
    data = f'data-open="{name}" data-task="{text(facts.task or "")}" data-errors="{facts.errors}"'
    return f"<tr {data}>{row}</tr>"


def _episode(index: RunIndex, one: Episode, name: str, tokens: _Tokens) -> str:
    facts = one.facts
    kind = {"well": "green", "failed": "red"}.get(facts.how, "blue")
    chips = [chip(facts.why or facts.how, kind), chip(f"reward {figure(facts.reward, '+z.3f')}")]
    if one.advantage is not None:
        chips.append(chip(f"advantage {figure(one.advantage, '+z.3f')}"))
        chips.append(chip(f"step {one.step} · group {one.group}"))
    head: Mapping[str, Any] = {r["type"]: r for r in index.load(one, index.head(one))}
    error = f'<div class="air error">{text(facts.error)}</div>' if facts.error else ""
    places = index.places(one, 0, MOST_TURNS)
    start = head.get("start", {})
    turns = "".join(
        markup.item(each, tokens=tokens.of(one, start, each))
        for each in items(places, index.load(one, places))
    )
    rest = facts.items - MOST_TURNS
    more = f'<div class="note">{rest} turns more</div>' if rest > 0 else ""
    scores = [(p.item + 1, p.score) for p in index.curve(one) if p.score is not None]
    label = facts.metric or "score"
    chart = Chart(f"score {one.name}", {"score": scores}, x="turn", y=label, exact=True)
    curve = svg.curves(chart, step=True) if len(scores) > 1 else ""
    times = markup.split({key: getattr(facts, f"seconds_{key}") for key in metric_series.TIMES})
    return (
        f'<details class="episode" id="{name}"><summary><b>{line(facts.task or "?", 60)}</b> '
        f"{' '.join(chips)} "
        f'<span class="note">{line(one.name, 60)} · {seconds(facts.seconds)}</span></summary>'
        f'<div class="stack">{error}{times}<div class="graph">{curve}</div>'
        f"{markup.opening(start)}{turns}{more}</div></details>"
    )
