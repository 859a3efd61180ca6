"""Displays the progress of a training run (as a live table on a terminal, otherwise as plain lines), and at
the end a table of the results."""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from air import paths

WIDE = 1000
"""The width of final tables, in characters. It is larger than the width of any terminal, because a table that
is fitted to the terminal would truncate numbers. The terminal wraps the long lines."""
_SHOWN_STEPS = 8
_LOG = logging.getLogger(__name__)
Row = Mapping[str, Any]
"""One line of `metrics.jsonl`."""


def number(value: float | None, form: str = ".3f") -> str:
    """Returns a number as text for a table, in the format `form` (a format specification); a dash for
    None."""
    return "–" if value is None else format(value, form)


def percent(value: float | None) -> str:
    """Returns a share between 0 and 1 as text in percent, such as `25%`, or a dash for None."""
    return "–" if value is None else f"{100 * value:.0f}%"


def split(row: Row) -> str:
    """Returns how the time of a step's episodes is divided, as four percentages: sampling replies, commands
    in boxes (the agents' containers), grading, and waiting in queues, such as `60/20/15/5`. `row` is the
    step's line of `metrics.jsonl`. Returns a dash if `row` has no times."""
    parts = [
        float(row.get(f"seconds_{name}") or 0) for name in ("model", "exec", "grading", "queue")
    ]
    total = sum(parts)
    return "/".join(f"{100 * p / total:.0f}" for p in parts) if total else "–"


_COLUMNS: dict[str, Callable[[Row], str]] = {
    "step": lambda r: str(r["step"]),
    "reward": lambda r: number(r["reward"], "+z.3f"),
    "delta": lambda r: number(r.get("reward/delta"), "+z.3f"),
    "valid": lambda r: percent(r["valid"]),
    "well-formed": lambda r: percent(r["well_formed"]),
    "no spread": lambda r: f"{r['zero_spread_groups']}/{r['groups']}",
    "failed": lambda r: str(r["failed_episodes"]),
    "tokens/s": lambda r: number(r["tokens_per_second"], ".0f"),
    "model/exec/grade/queue %": split,
    "s": lambda r: number(r["time/step"], ".1f"),
}


class Progress:
    """Context manager that displays the progress of a run of `total` training steps: as a live table on a
    terminal, otherwise as plain lines. All lines are also logged. `title` is the title of the table. If
    `console` is None, the output goes to standard output."""

    def __init__(self, total: int, *, title: str = "", console: Console | None = None) -> None:
        self.console = console or Console()
        self._title, self._total, self._done, self._first = title, total, 0, 0
        self._rows: list[Row] = []
        self._began = time.monotonic()
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            console=self.console,
        )
        self._steps: TaskID = self._bars.add_task("steps", total=total, note="")
        self._episodes: TaskID = self._bars.add_task("episodes", total=1, note="")
        self._live = Live(console=self.console, refresh_per_second=4, get_renderable=self._render)

    def __enter__(self) -> Progress:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if self._live.is_started:
            self._live.stop()

    def say(self, text: str) -> None:
        """Prints and logs the line `text`. On a terminal, the line appears above the live table."""
        _LOG.info("%s", text)
        self.console.print(text, highlight=False, soft_wrap=True, markup=False)

    def begin(self, done: int) -> None:
        """Starts the clock for the estimated remaining time. `done` is the number of steps that are already
        finished; it is not 0 in a resumed run."""
        self._began, self._done, self._first = time.monotonic(), done, done
        self._bars.update(self._steps, completed=done)

    def phase(self, name: str, episodes: int) -> None:
        """Resets the progress bar of episodes to 0 of `episodes`, with the label `name`."""
        self._bars.update(self._episodes, description=name, completed=0, total=episodes)

    def episode(self) -> None:
        """Advances the progress bar of episodes by one, because an episode has ended."""
        self._bars.advance(self._episodes)

    def step(self, row: Row) -> None:
        """Shows the metrics of a finished training step; `row` is the step's line of `metrics.jsonl`."""
        self._rows.append(row)
        self._done = int(row["step"])
        self._bars.update(self._steps, completed=self._done, note=f"ETA {self.eta}")
        cells = (f"{name} {value(row)}" for name, value in _COLUMNS.items())
        line = "  ".join(cells) + f"  ETA {self.eta}"
        if self.console.is_terminal:
            _LOG.info("%s", line)
        else:
            self.say(line)

    @property
    def eta(self) -> str:
        """The estimated remaining time of the run as `minutes:seconds`; a dash until the first step has
        ended."""
        played = self._done - self._first
        if not played:
            return "–"
        seconds = int((time.monotonic() - self._began) / played * (self._total - self._done))
        return f"{seconds // 60}:{seconds % 60:02d}"

    def _render(self) -> Group:
        table = Table(title=self._title, title_justify="left", expand=False)
        for name in _COLUMNS:
            table.add_column(name, justify="right")
        for row in self._rows[-_SHOWN_STEPS:]:
            table.add_row(*(value(row) for value in _COLUMNS.values()))
        return Group(table, self._bars)


def plain_table(title: str = "") -> Table:
    """Returns a new, empty table without borders. The caller should print it on a console of the width
    `WIDE`."""
    # A title wider than the table would otherwise be wrapped at the table's width.
    whole = Text(title, style="table.title", no_wrap=True, overflow="ignore") if title else None
    return Table(title=whole, title_justify="left", box=None, padding=(0, 2, 0, 0))


def last_table(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    """Prints the final table of a run: each task's scores and rewards in the first and last quarter of the
    steps. `rows` is a result of `metrics.summary`."""
    table = plain_table("scores on the validation split, at the last validate of each episode")
    table.add_column("task", no_wrap=True)
    for name in ("baseline", "first ¼", "best", "last ¼", "best", "reward"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        scores = ("baseline", "first_mean", "first_best", "last_mean", "last_best")
        reward = f"{number(row['first_reward'], '+z.2f')} → {number(row['last_reward'], '+z.2f')}"
        table.add_row(row["task"], *(number(row[name]) for name in scores), reward)
    Console(file=console.file, width=WIDE).print(table)


def further(console: Console, folder: Path, checkpoint: Path | None) -> None:
    """Prints what the user can do next: the commands that view and replay the finished run in `folder`, and
    evaluate its last `checkpoint`, if there is one."""
    run, air = shlex.quote(str(folder)), paths.command()
    lines = [
        f"\nThe run is in {folder}: config.json metrics.jsonl log.txt trajectories/ checkpoints/"
    ]
    if checkpoint is not None:
        lines.append(f"  play it:      {air} eval {shlex.quote(str(checkpoint))}")
    lines.append(f"  look at it:   {air} view {run}")
    lines.append(f"  or here:      {air} show {run}")
    lines.append(f"  replay it:    {air} replay {run}")
    if recorded := sorted((folder / "trajectories").glob("*.jsonl")):
        lines.append(
            f"  step into it: {air} shell --from {shlex.quote(str(recorded[-1]))} --turn 0"
        )
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True, markup=False)
