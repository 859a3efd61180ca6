"""Prints training runs and recorded episodes on a terminal. Recorded text is cleaned, and never interpreted
as markup."""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from air import paths
from air.trajectories.outcome import FORGEABLE
from air.view.index.episode_file import EpisodeFile
from air.view.index.facts import number
from air.view.index.items import Item, diff_of, outputs, reasoning, thought
from air.view.index.run_discovery import Run
from air.view.index.run_index import Episode, RunIndex
from air.view.render import charts, metric_series, overview
from air.view.render.charts import MEAN, Chart
from air.view.render.clean import clean, cut, one_line, preview
from air.view.render.markup import FAULT_LABEL, figure, seconds

PIPED_WIDTH = 160
_WHOLE_IDS = 120
"""If the terminal has at least this number of columns, ids of episodes are printed in full; otherwise they
are shortened."""
SHOWN_CHARACTERS = 12_000
"""The maximum number of characters of a text that is printed in full. The middle of a longer text is left
out, unless the user asks for everything."""
SHOWN_DIFF = 3_000
"""The maximum number of characters of a diff (of changed files) that is printed in full. The middle of a
longer diff is left out, unless the user asks for everything."""
_NAME, _LABEL = 15, 32
"""The minimum width, in terminal cells, of the column with the names of numbers, and the maximum number of
characters of a curve's label."""
_FIGURE = 10
"""The maximum number of characters of a number that `figure` returns, such as −1.234e−05."""
_BARS = "▁▂▃▄▅▆▇█"
_COLOURS = {"model": "blue", "exec": "green", "grading": "yellow", "queue": "bright_black"}


def console() -> Console:
    """Returns a console of the library `rich` on standard output.

    Its width is that of the terminal. If the output is not a terminal, the width is the environment variable
    `COLUMNS` or, if this is not set, `PIPED_WIDTH` (160 columns).
    """
    result = Console(highlight=False, markup=False, emoji=False)
    if not result.is_terminal and "COLUMNS" not in os.environ:
        result.width = PIPED_WIDTH
    return result


def show_run(
    out: Console, run: Run, index: RunIndex, episodes: Sequence[Episode], *, count: int
) -> None:
    """Prints a training run: its main numbers, its tasks, and a table of `episodes`.

    `count` is the number of all episodes that meet the user's filter; `episodes` may be only some of them.
    """
    metrics, totals = index.metrics(), index.totals()
    out.print(Text(one_line(str(run.folder), 200), "bold"))
    curves = [(chart, name) for chart in charts.main(metrics) for name in chart.curves]
    labels = [_label(chart, name) for chart, name in curves]
    column = max([_NAME, *map(cell_len, labels)])
    for name, value, remark in overview.tiles(run, metrics, totals, index.models()):
        out.print(_tile(name, value, remark, column), soft_wrap=True)
    for label, (chart, curve) in zip(labels, curves, strict=True):
        out.print(_curve(chart, curve, label, column, out.width))
    if totals["episodes"]:
        out.print(_times(metric_series.times(totals)))
    for name, problems in index.problems()[:3]:
        file = f"{one_line(name, 80).removeprefix('/')}.jsonl"
        out.print(Text(f"{file}: {problems} lines could not be read", "red"))
    if not totals["episodes"]:
        return
    out.print()
    out.print(_tasks(index))
    out.print()
    out.print(_episodes(episodes, out.width))
    out.print()
    out.print(Text(f"{len(episodes)} of {count} episodes. One of them:", "bright_black"))
    if episodes:
        path = index.file.trajectories / f"{episodes[0].name}.jsonl"
        out.print(Text(f"  {paths.command()} show {_quoted(path)}", "bright_black"), soft_wrap=True)


def show_episode(
    out: Console, file: EpisodeFile, items: Sequence[Item], *, full: bool, everything: bool
) -> None:
    """Prints the main facts about an episode, then the given items. An item is a turn with its gradings.

    Normally, each item is one line. With `full`, items are printed in full, except that very long texts are
    cut; with `everything` in addition, no text is cut.
    """
    _facts(out, file)
    out.print()
    if full:
        for item in items:
            show_item(out, item, everything=everything)
        return
    out.print(_turns(items))
    if items:
        out.print()
        hint = f"in full: {paths.command()} show {_quoted(file.path)} --turn N, or --full for all"
        out.print(Text(hint, "bright_black"), soft_wrap=True)


def show_item(out: Console, item: Item, *, everything: bool) -> None:
    """Prints a turn with its gradings in full. Very long texts are cut, unless `everything` is true."""
    step = item.step or {}
    out.rule(Text(_title(item), "bold red" if item.bad else "bold"), align="left")
    limit = 10**9 if everything else SHOWN_CHARACTERS
    before, after = thought(step)
    _part(out, "reasoning", reasoning(step), "italic bright_black", limit)
    _part(out, "thought" if reasoning(step) else "", before, "italic", limit)
    _part(out, "action", step.get("action"), "cyan", limit)
    _part(out, "after the action", after, "italic", limit)
    world, received = outputs(step)
    _part(out, "output", world, "", limit)
    _part(out, "as the model was shown it", received, "bright_black", limit)
    files, diff, problem = diff_of(item.step)
    if files:
        names = ", ".join(f"{one.get('status')} {one.get('path')}" for one in files)
        _part(out, "workspace", names, "", limit)
    if diff:
        out.print(
            _coloured(cut(clean(diff), limit if everything else SHOWN_DIFF)[0]), soft_wrap=True
        )
    _part(out, "", problem, "bright_black", limit)
    for graded in item.validates:
        _graded(out, graded)
    out.print()


def _tile(name: str, value: str, remark: str, column: int) -> Text:
    line = Text(f"{set_cell_size(one_line(name, 30), column)} ", "bright_black")
    line.append(one_line(value, 60), "bold")
    return line.append(f"  {one_line(remark, 80)}", "bright_black")


def _label(chart: Chart, name: str) -> str:
    return one_line(chart.title if len(chart.curves) == 1 else f"{chart.y}, {name}", _LABEL)


def _curve(chart: Chart, name: str, label: str, column: int, out_width: int) -> Text:
    """Returns a line of text about one curve of a chart: its label, padded to `column` cells, the curve drawn
    with bar characters, and the last value. The curve is smoothed if the chart's curves are. If possible, the
    line fits on a terminal of `out_width` columns."""
    values = [value for _, value in chart.strong(name)]
    remark = f"  {MEAN}" if chart.smoothed else ""
    room = out_width - column - _FIGURE - len(remark) - 2
    line = Text(f"{set_cell_size(label, column)} ", "bright_black")
    line.append(spark(values, max(8, min(60, room))), "cyan")
    return line.append(f" {figure(values[-1])}").append(remark, "bright_black")


def spark(values: Sequence[float], width: int = 60) -> str:
    """Draws a curve as a line of at most `width` bar characters. Each character stands for one value, or for
    the mean of several consecutive values."""
    if len(values) > width:
        edges = [round(i * len(values) / width) for i in range(width + 1)]
        parts = [values[a:b] for a, b in itertools.pairwise(edges)]
        values = [sum(part) / len(part) for part in parts]
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join(_BARS[min(7, int(8 * (value - low) / span))] for value in values)


def _quoted(path: Path) -> str:
    return shlex.quote(one_line(str(path), 1000))


def _facts(out: Console, file: EpisodeFile) -> None:
    facts, head = file.facts, file.head()
    start, end = head["start"], head["end"]
    arrow = "↓" if facts.direction == "lower" else "↑"
    kind = {"well": "green", "failed": "red"}.get(facts.how, "yellow")
    ending = facts.why or facts.how if facts.how == "well" else facts.how
    line = Text.assemble(
        (one_line(facts.task or "?", 60), "bold"), "  ", (one_line(ending, 60), kind)
    )
    for key in ("isolation", "image", "format", "seed"):
        if start.get(key) not in (None, ""):
            line.append(f"  {key} {one_line(str(start[key]), 40)}", "bright_black")
    if start.get("trust") in FORGEABLE:
        line.append(f"  trust {start['trust']}", "yellow")
    out.print(line)
    out.print(
        Text(f"{one_line(file.path.stem, 80)}  {one_line(facts.model or '', 80)}", "bright_black")
    )
    terms = end.get("terms")
    terms = terms if isinstance(terms, dict) else {}
    terms_text = " ".join(
        f"{one_line(name, 20)} {figure(number(value), '+.4g')}"
        for name, value in terms.items()
        if value
    )
    out.print(
        Text.assemble(
            ("reward ", ""),
            (figure(facts.reward, "+z.4f"), "bold"),
            (f" = {terms_text}" if terms_text else "", "bright_black"),
            f"   {one_line(facts.metric or 'score', 30)} {arrow} last {figure(facts.score)} "
            f"best {figure(facts.best)} test {figure(facts.test)} baseline {figure(facts.baseline)}",
        )
    )
    out.print(_times({name: getattr(facts, f"seconds_{name}") for name in metric_series.TIMES}))
    if facts.error:
        out.print(Text(clean(facts.error), "red"))
    if file.problems:
        out.print(Text(f"{file.problems} lines could not be read", "red"))


def _times(times: Mapping[str, float | None]) -> Text:
    total = sum(value or 0 for value in times.values())
    line = Text("time  ")
    for name, value in times.items():
        if value and total:
            line.append(
                f"{name} {seconds(value)} {100 * value / total:.0f}%   ", _COLOURS.get(name, "")
            )
    return line


def _table(*columns: tuple[str, str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, header_style="bright_black")
    for name, how in columns:
        if how == "wide":
            table.add_column(name, ratio=1, no_wrap=True, overflow="ellipsis")
            table.expand = True
        else:
            table.add_column(name, justify="right" if how == "right" else "left", no_wrap=True)
    return table


def _tasks(index: RunIndex) -> Table:
    right = [
        (name, "right") for name in ("episodes", "reward", "baseline", "mean last", "best", "test")
    ]
    table = _table(("task", "left"), ("metric", "left"), *right)
    for row in index.by_task():
        table.add_row(
            Text(one_line(row["task"], 40)),
            Text(
                f"{one_line(row['metric'] or '', 30)} {'↓' if row['direction'] == 'lower' else '↑'}"
            ),
            str(row["episodes"]),
            figure(row["reward"], "+z.3f"),
            *(figure(row[name]) for name in ("baseline", "score", "best", "test")),
        )
    return table


def _episodes(episodes: Sequence[Episode], out_width: int) -> Table:
    right = [(name, "right") for name in ("reward", "best", "last", "turns", "errors", "time")]
    table = _table(("episode", "left"), ("task", "left"), *right, ("end", "wide"))
    width = 32 if out_width >= _WHOLE_IDS else 8  # an id is cut before a task's name
    for one in episodes:
        facts = one.facts
        table.add_row(
            Text(one_line(one.name, width)),
            Text(one_line(facts.task or "?", 40)),
            figure(facts.reward, "+z.3f"),
            figure(facts.best),
            figure(facts.score),
            str(facts.turns),
            str(facts.errors),
            seconds(facts.seconds),
            Text(
                one_line(facts.ending, 40 if facts.how == "well" else 200),
                "red" if facts.how == "failed" else "",
            ),
        )
    return table


def _turns(items: Sequence[Item]) -> Table:
    table = _table(
        ("turn", "right"),
        ("action", "wide"),
        ("exit", "right"),
        ("score", "right"),
        ("Δ", "right"),
        ("s", "right"),
    )
    for item in items:
        step = item.step or {}
        graded = item.validates[-1] if item.validates else {}
        delta = number(graded.get("delta") if graded else step.get("reward"))
        colour = "green" if (delta or 0) > 0 else "red" if (delta or 0) < 0 else ""
        action = step.get("action")
        text = preview(action, 300) if isinstance(action, str) else _no_action(step)
        table.add_row(
            _number(item),
            Text(text, "red" if item.bad else ""),
            "" if step.get("code") is None else one_line(str(step["code"]), 12),
            figure(number(graded.get("score"))) if graded else "",
            Text("" if delta is None else figure(delta, "+.3g"), colour),
            figure(number(step.get("exec_seconds")), ".2f") if step else "",
        )
    return table


def _no_action(step: Mapping[str, Any]) -> str:
    if not step:
        return "validate"
    said = step.get("reply") or (reasoning(step) and f"reasoning only: {reasoning(step)}")
    return preview(f"no action ({step.get('problem') or 'format'}): {said}", 300)


def _number(item: Item) -> str:
    return figure(number((item.step or {}).get("turn", item.number + 1)), ".0f")


def _title(item: Item) -> str:
    step = item.step or {}
    parts = [f"turn {_number(item)}"]
    if step.get("code") not in (None, 0):
        parts.append(f"exit {one_line(str(step['code']), 12)}")
    if step.get("timed_out"):
        parts.append("timed out")
    if item.step and step.get("action") is None:
        parts.append(f"no action ({one_line(str(step.get('problem') or 'format'), 40)})")
    if (reward := number(step.get("reward"))) is not None:
        parts.append(f"reward {figure(reward, '+.4g')}")
    if took := number(step.get("exec_seconds")):
        parts.append(seconds(took))
    return " · ".join(parts)


def _part(out: Console, name: str, content: object, style: str, limit: int) -> None:
    if not content:
        return
    if name:
        out.print(Text(name, "bright_black"))
    out.print(Text(cut(clean(str(content)), limit)[0].rstrip("\n"), style), soft_wrap=True)


def _coloured(diff: str) -> Text:
    text = Text()
    for line in diff.split("\n"):
        at = line.startswith(("+++", "---", "@@"))
        colour = "bright_black" if at else {"+": "green", "-": "red"}.get(line[:1], "")
        text.append(line + "\n", colour)
    return text


def _graded(out: Console, graded: Mapping[str, Any]) -> None:
    line = Text("validate", "bold blue")
    for name, form in (("score", ".6g"), ("phi", ".4g"), ("delta", "+.4g"), ("seconds", ".2g")):
        value = number(graded.get(name))
        if value is not None:
            line.append(f"  {name} {figure(value, form)}", "")
    for name in ("automatic", "remembered"):
        if graded.get(name):
            line.append(f"  {name}", "bright_black")
    out.print(line)
    if graded.get("problem"):
        out.print(Text(clean(str(graded["problem"])), "red"), soft_wrap=True)
    if graded.get("fault"):
        text = f"{FAULT_LABEL}: {clean(str(graded['fault']))}"
        out.print(Text(text, "bright_black"), soft_wrap=True)
