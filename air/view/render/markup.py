"""Renders episodes and tables as HTML for the app and the exported page. All text is cleaned, escaped and
limited in length.

All HTML tags and CSS classes come from this module, never from recorded text. The HTML has no links.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Mapping, Sequence
from html import escape as _escape
from pathlib import Path
from typing import Any

from air.view.index.facts import number
from air.view.index.items import Item, diff_of, outputs, reasoning, thought
from air.view.render.charts import COLOURS, DARK_COLOURS, Chart
from air.view.render.clean import clean, clean_cut, cut, one_line
from air.view.render.clean import preview as clean_preview

FAULT_LABEL = "for people, never shown to the agent: the grader failed on this artefact, twice"

CSS = Path(__file__).with_name("style.css")
"""The path of the style sheet for this module's HTML, for light and dark mode."""
SHOWN_CHARACTERS = 20_000
"""The maximum number of characters of one text on a page. The middle of a longer text is left out."""
_PREVIEW = 160
OPEN_LINES = 14
"""A command's output with at most this number of lines is visible at once. The user must expand a longer
output by a click."""


def text(value: object, limit: int = SHOWN_CHARACTERS) -> str:
    """Returns `value` as text for an HTML page: without escape sequences of terminals, with names instead of
    invisible characters, escaped for HTML, and shortened to about `limit` characters. If `value` is not a
    string, its JSON text is used."""
    if not isinstance(value, str):
        value = json.dumps(value, ensure_ascii=False)
    return _escape(clean_cut(value, limit), quote=True)


def line(value: object, width: int) -> str:
    """Returns `value` as one line of text for an HTML page: without escape sequences of terminals, with names
    instead of invisible characters, of at most `width` characters, and escaped for HTML. If `value` is not a
    string, its JSON text is used."""
    return _escape(one_line(value if isinstance(value, str) else json.dumps(value), width))


def figure(value: float | None, form: str = ".4g") -> str:
    """Returns a number as text in the Python format `form`, with a true minus sign; a dash for None."""
    return "–" if value is None else format(value, form).replace("-", "−")


def seconds(value: float | None) -> str:
    """Returns a duration in seconds as text, such as `3.2 s` or `1 h 05 min`, or a dash for None."""
    if value is None:
        return "–"
    if value < 60:
        return f"{value:.2g} s" if value < 10 else f"{value:.0f} s"
    minutes, rest = divmod(int(value), 60)
    return (
        f"{minutes // 60} h {minutes % 60:02d} min"
        if minutes >= 60
        else f"{minutes}:{rest:02d} min"
    )


def chip(label: str, kind: str = "") -> str:
    """Returns the HTML of a small label with the text `label`. `kind` is a CSS class, such as the name of a
    colour."""
    return f'<span class="chip {kind}">{line(label, 60)}</span>'


def tiles(values: Sequence[tuple[str, str, str]]) -> str:
    """Returns the HTML of a row of small boxes, such as the main numbers of a run: one box for each tuple
    (name, value, remark) in `values`."""
    cells = (
        f'<div class="tile"><div class="name">{line(name, 40)}</div>'
        f'<div class="value">{line(value, 60)}</div><div class="note">{line(note, 80)}</div></div>'
        for name, value, note in values
    )
    return f'<div class="air tiles">{"".join(cells)}</div>'


def split(times: Mapping[str, float | None]) -> str:
    """Returns the HTML of a horizontal bar, divided into parts in proportion to the time spent on each
    activity, with a legend. `times` maps the activity to seconds."""
    parts = {name: value for name, value in times.items() if value}
    total = sum(parts.values())
    if not total:
        return '<div class="air split"><span class="note">no times recorded</span></div>'
    bars = "".join(
        f'<i class="t-{_escape(name)}" style="width:{100 * value / total:.2f}%"></i>'
        for name, value in parts.items()
    )
    legend = "".join(
        f'<span><i class="dot t-{_escape(name)}"></i>{line(name, 20)} {seconds(value)} '
        f"<b>{100 * value / total:.0f}%</b></span>"
        for name, value in parts.items()
    )
    return f'<div class="air split"><div class="bar">{bars}</div><div class="legend">{legend}</div></div>'


def legend(chart: Chart) -> str:
    """Returns the HTML of a legend for the curves of a chart. It continues on further lines if the page is
    narrow. Curves without points have no entry, and use up no colour."""
    names = dict.fromkeys(line(name, 80) for name, points in chart.curves.items() if points)
    colours = itertools.cycle(zip(COLOURS, DARK_COLOURS, strict=True))
    entries = "".join(
        f'<span><i class="dot" style="background:light-dark({light},{dark})"></i>{name}</span>'
        for name, (light, dark) in zip(names, colours, strict=False)
    )
    return f'<div class="air"><div class="legend">{entries}</div></div>'


def item(
    one: Item,
    *,
    is_open: bool = False,
    here: bool = False,
    preview: str | None = None,
    tokens: str = "",
) -> str:
    """Returns the HTML of one turn with its gradings.

    The turn is expanded if `is_open` is true; otherwise, the user expands it by a click. `here` marks the
    turn as the one that the user has selected. `preview` is the line that represents the turn while it is not
    expanded (None: the result of `preview_of`). `tokens` is the HTML of the turn's tokens, which is
    appended.
    """
    classes = " ".join(["air", "step", *(["bad"] if one.bad else []), *(["here"] if here else [])])
    parts = [_said(one), _diff(one), *(_grade(line) for line in one.validates), _rest(one), tokens]
    state = " open" if is_open else ""
    return (
        f'<details class="{classes}"{state}><summary>{_summary(one, preview)}</summary>'
        f'<div class="body">{"".join(parts)}</div></details>'
    )


def preview_of(one: Item) -> str:
    """Returns one line of text that represents a turn: its action; if it has none, the model's reply; if that
    is empty, the model's reasoning. For an item that has only gradings, returns `validate`."""
    step = one.step or {}
    what = step.get("action")
    if what is None:
        what = (step.get("reply") or reasoning(step)) if one.step else "validate"
    return clean_preview(what if isinstance(what, str) else json.dumps(what), _PREVIEW)


def _summary(one: Item, preview: str | None) -> str:
    step = one.step or {}
    what = preview_of(one) if preview is None else preview
    chips = []
    code = step.get("code")
    if code not in (None, 0):
        chips.append(chip(f"exit {code}", "red"))
    if step.get("timed_out"):
        chips.append(chip("timed out", "red"))
    if one.step and step.get("action") is None:
        chips.append(chip(str(step.get("problem") or "no action"), "red"))
    for graded in one.validates:
        chips.append(_score_chip(graded))
    if (reward := number(step.get("reward"))) is not None:
        kind = "green" if reward > 0 else "red" if reward < 0 else "quiet"
        chips.append(chip(f"reward {figure(reward, '+.3g')}", kind))
    took = number(step.get("exec_seconds"))
    if took:
        chips.append(chip(seconds(took), "quiet"))
    turn = figure(number(step.get("turn", one.number + 1)), ".0f")
    return f'<span class="n">{turn}</span><code>{_escape(what)}</code>{"".join(chips)}'


def _score_chip(graded: Mapping[str, Any]) -> str:
    score, delta = number(graded.get("score")), number(graded.get("delta"))
    if score is None:
        return chip("no score", "red")
    kind = "green" if delta and delta > 0 else "red" if delta and delta < 0 else "blue"
    return chip(f"{figure(score)}  Δ {figure(delta, '+.3g')}", kind)


def _said(one: Item) -> str:
    step = one.step
    if step is None:
        return ""
    parts = []
    if why := reasoning(step):
        parts.append(_folded("reasoning", why, "thought", is_open=len(why) < 400))
    before, after = thought(step)
    if before:
        parts.append(_folded("thought", before, "thought", is_open=len(before) < 400))
    if isinstance(step.get("action"), str):
        parts.append(f'<pre class="action">{text(step["action"])}</pre>')
    if after:
        parts.append(_folded("after the action", after, "thought", is_open=False))
    world, received = outputs(step)
    for name, content in (("output", world), ("as the model was shown it", received)):
        if content:
            content = clean(content)
            count = content.count("\n") + 1
            name += f" · {count} line{'s' * (count > 1)}"
            is_open = name.startswith("output") and count <= OPEN_LINES
            parts.append(_folded(name, content, "output", is_open=is_open))
    return "".join(parts)


def _folded(name: str, content: str, kind: str, *, is_open: bool) -> str:
    state = " open" if is_open else ""
    return (
        f'<details class="fold {kind}"{state}><summary>{line(name, 80)}</summary>'
        f"<pre>{text(content)}</pre></details>"
    )


def _diff(one: Item) -> str:
    files, diff, problem = diff_of(one.step)
    if not (files or diff or problem):
        return ""
    names = "".join(f'<div class="file">{_file(change)}</div>' for change in files)
    rows = cut(diff, SHOWN_CHARACTERS)[0].split("\n") if diff else []
    lines = "".join(f'<span class="{_diff_class(row)}">{text(row, 2000)}</span>\n' for row in rows)
    code = f"<pre>{lines}</pre>" if lines else ""
    note = f'<div class="note">{text(problem, 400)}</div>' if problem else ""
    name = f"workspace · {len(files)} file{'s' * (len(files) != 1)} changed"
    return f'<details class="fold diff"><summary>{line(name, 80)}</summary>{names}{code}{note}</details>'


def _file(change: Mapping[str, Any]) -> str:
    """Returns the HTML of a line about a file that the agent changed in a turn. `change` is the file's entry
    in the turn's recorded line."""
    added, removed = number(change.get("added")) or 0, number(change.get("removed")) or 0
    counts = f"+{added:.0f} −{removed:.0f}" if added or removed else ""
    words = " ".join(str(change.get(key) or "") for key in ("status", "note"))
    chips = "".join(chip(each, "quiet") for each in (words.strip(), counts) if each)
    return f"{line(change.get('path') or '?', 200)} {chips}"


def _diff_class(row: str) -> str:
    if row.startswith(("+++", "---", "@@")):
        return "at"
    return {"+": "add", "-": "del"}.get(row[:1], "same")


def _grade(graded: Mapping[str, Any]) -> str:
    problem = graded.get("problem")
    numbers = {
        "score": figure(number(graded.get("score")), ".6g"),
        "φ": figure(number(graded.get("phi"))),
        "Δ": figure(number(graded.get("delta")), "+.4g"),
        "± s.e.": figure(number(graded.get("stderr"))),
        "grading": seconds(number(graded.get("seconds"))),
    }
    metrics = graded.get("metrics")
    if isinstance(metrics, dict):
        numbers |= {str(name): figure(number(value), ".6g") for name, value in metrics.items()}
    notes = [name for name in ("automatic", "remembered") if graded.get(name)]
    cells = "".join(
        f"<span><b>{line(name, 40)}</b> {line(value, 40)}</span>"
        for name, value in numbers.items()
        if value != "–"
    )
    problem_html = f'<div class="problem">{text(problem)}</div>' if problem else ""
    if fault := graded.get("fault"):
        problem_html += f'<div class="fault">{FAULT_LABEL}: {text(fault)}</div>'
    chips = "".join(chip(note, "quiet") for note in notes)
    return (
        f'<div class="grade"><span class="head">validate</span>{cells}{chips}{problem_html}</div>'
    )


def _rest(one: Item) -> str:
    """Returns the HTML of those recorded lines of a turn whose type this version of air does not know. They
    are shown as JSON."""
    return "".join(
        _folded(
            str(row.get("type")),
            json.dumps(row, ensure_ascii=False, indent=1),
            "other",
            is_open=False,
        )
        for row in one.others
    )


def table(
    heads: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    left: int = 1,
    wide: Collection[str] = (),
) -> str:
    """Returns the HTML of a table. Its first `left` columns are left-aligned, the others right-aligned.

    `heads` are the names of the columns. `wide` are the names of columns that are hidden on a narrow
    screen.
    """
    sides = [_side(number < left, name in wide) for number, name in enumerate(heads)]
    head = "".join(f"<th{side}>{line(n, 60)}</th>" for side, n in zip(sides, heads, strict=True))
    body = "".join(
        "<tr>"
        + "".join(f"<td{s}>{line(_cell(v), 120)}</td>" for s, v in zip(sides, row, strict=True))
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="air"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _side(left: bool, wide: bool) -> str:
    names = " ".join(([] if left else ["num"]) + (["wide"] if wide else []))
    return f' class="{names}"' if names else ""


def _cell(value: object) -> str:
    if isinstance(value, float):
        return figure(value)
    return "–" if value is None else str(value)


def tasks(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns the HTML of a table with the results of each task. `rows` is the result of
    `RunIndex.by_task`."""
    heads = ("task", "metric", "episodes", "reward", "baseline", "mean last", "best", "mean test")
    cells = [
        (
            row["task"],
            f"{row['metric'] or ''} {'↓' if row['direction'] == 'lower' else '↑'}",
            row["episodes"],
            figure(row["reward"], "+z.3f"),
            *(row[name] for name in ("baseline", "score", "best", "test")),
        )
        for row in rows
    ]
    return table(heads, cells, left=2, wide=("metric", "episodes", "baseline"))


def opening(start: Mapping[str, Any]) -> str:
    """Returns the HTML of an episode's prompts and settings. `start` is the first line of the episode's
    trajectory (its recording)."""
    folds = "".join(
        _folded(name, str(start[key]), "", is_open=False)
        for name, key in (("task prompt", "prompt"), ("system prompt", "system"))
        if start.get(key)
    )
    rest = {k: v for k, v in start.items() if k not in ("prompt", "system", "type", "v")}
    rows = "\n".join(f"{key}: {json.dumps(v, ensure_ascii=False)}" for key, v in rest.items())
    more = _folded("recorded settings", rows, "", is_open=False) if rest else ""
    return f'<div class="air">{folds}{more}</div>'
