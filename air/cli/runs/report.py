"""Implements the command `air report RUN…`: compares recorded runs.

For each task and run, the command prints two means over episodes: the score of the best attempt, and the
score of the last submission. It also prints a performance profile of each run: for several factors, the share
of tasks on which the score of the run is within this factor of the best run's score. The area under this
curve (AUP) is printed as a single number for each run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from air.trajectories.exactness_report import Agreement
    from air.trajectories.performance_profile import Profiles
    from air.trajectories.run_comparison import Report, Row, Run

HELP = "compare recorded runs: best attempts, last submissions, performance profiles, AUP"
EXAMPLES = ("air report outputs/A outputs/B", "air report outputs/A outputs/B --plot curves.png")
RATIOS = (1.0, 1.05, 1.1, 1.25, 1.5, 2.0)
"""The factors for which the performance profile of a run is printed. For the factor 1.1, this is the share of
tasks on which the run's score is at most 1.1 times worse than the best run's score."""
TITLES = {"best_attempt": "best attempt", "last_submission": "last submission"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="a run's folder (outputs/NAME, or the output of `air demos`), or a folder of trajectories",
    )
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help="also draw the learning curves of all these runs as one picture (PNG)",
    )
    parser.add_argument(
        "--last",
        type=int,
        metavar="N",
        help="only the last N episodes of each task and model (published tables use the best of 4)",
    )


def run(args: argparse.Namespace) -> int:
    """Prints the report, and an error message for each run that cannot be read. Returns the exit code: 2 if a
    run cannot be read, else 0. With `--plot`, a run without episodes (such as one of `sft`) is only drawn,
    and is missing in the report."""
    from air.errors import ConfigError
    from air.trajectories.run_comparison import compare
    from air.view.render.clean import clean

    if args.last is not None and args.last < 1:
        raise ConfigError(f"must be 1 or more, not {args.last}", where="--last")
    drawn = set() if args.plot is None else _plot(args.plot, args.runs)
    only_drawn = {run for run in drawn if not (run / "trajectories").is_dir()}
    runs, bad = _read([run for run in args.runs if run not in only_drawn], args.last)
    for _, problem in bad:
        print(clean(f"error: {problem}"), file=sys.stderr)
    if not runs:
        return 2 if bad else 0
    report = compare(runs)
    if args.json:
        print(json.dumps(_as_json(runs, report, bad), allow_nan=False))
    else:
        _print(runs, report)
    return 2 if bad else 0


def _plot(file: Path, runs: Sequence[Path]) -> set[Path]:
    """Draws the learning curves of all runs that have training steps into the picture `file`, prints the name
    of the file to stderr, and returns the folders of these runs."""
    from air.trajectories import evaluations, metric_rows
    from air.view import curve_picture

    rows = {run: metric_rows.read(run / metric_rows.FILE) for run in runs}
    for run, each in rows.items():
        each += [
            {"step": one["step"], "eval/reward": one["reward"]} for one in evaluations.rows(run)
        ]
    short = [run.resolve().name for run in rows]
    names = [
        name if short.count(name) == 1 else str(run) for run, name in zip(rows, short, strict=True)
    ]
    curve_picture.save(
        file, {name: each for name, each in zip(names, rows.values(), strict=True) if each}
    )
    print(f"learning curves: {file}", file=sys.stderr)
    return {run for run, each in rows.items() if each}


def _read(paths: Sequence[Path], last: int | None) -> tuple[list[Run], list[tuple[Path, str]]]:
    """Reads the runs in the folders `paths`. Returns a pair: the runs that could be read, and for every other
    folder a pair (folder, error message).

    `last` is the number of episodes that are read for each task and model, namely the latest ones; None: all
    episodes.
    """
    from air.errors import ConfigError, UsageError
    from air.trajectories.run_comparison import read_run

    runs: list[Run] = []
    bad: list[tuple[Path, str]] = []
    seen: set[Path] = set()
    for path in paths:
        try:
            if path.resolve() in seen:
                raise ConfigError("this run is named twice", where=str(path))
            seen.add(path.resolve())
            runs.append(read_run(path, last=last))
        except UsageError as error:
            bad.append((path, str(error)))
    return runs, bad


def _print(runs: Sequence[Run], report: Report) -> None:
    from rich.console import Console

    from air.train.loop.progress import WIDE
    from air.view.render.clean import clean

    console = Console(highlight=False, width=WIDE)
    _print_runs(console, runs)
    if any(run.failures() for run in runs):
        console.print()
        _print_failures(console, runs)
    if any(run.evaluations for run in runs):
        console.print()
        _print_evaluations(console, [run for run in runs if run.evaluations])
    _print_exactness(console, runs)
    for view, rows in report.rows.items():
        console.print()
        _print_rows(console, TITLES[view], rows, report, with_test=view == "last_submission")
    for view, profile in report.profiles.items():
        if profile.aup:
            console.print()
            _print_profile(console, TITLES[view], profile)
    if report.notes:
        console.print()
    for note in report.notes:
        console.print(clean(f"note: {note}"), markup=False)


def _print_runs(console: Console, runs: Sequence[Run]) -> None:
    from air.train.loop.progress import number

    table = _table("runs", ("run", "model", "reward made of"), ("ended well", "steps", "reward"))
    for run in runs:
        counts = run.counts()
        models = dict.fromkeys(one.start.model for one in run.outcomes if one.start)
        made_of = {name: value for name, value in run.terms().items() if value}
        first, last = run.rewards()
        mean = f"{number(sum(run.terms().values()) if counts['well'] else None, '+z.3f')}"
        change = f" ({number(first, '+z.2f')} → {number(last, '+z.2f')})" if run.steps else ""
        table.add_row(
            str(run.path),
            ", ".join(models),
            ", ".join(f"{name} {value:+z.3f}" for name, value in made_of.items()) or "–",
            f"{counts['well']}/{sum(counts.values())}",
            str(len(run.steps)) if run.steps else "–",
            mean + change,
        )
    console.print(table)


def _print_failures(console: Console, runs: Sequence[Run]) -> None:
    """Prints a table with the number of episodes, for each task of each run, that ended because the machine
    or air failed (an infrastructure error)."""
    from rich.markup import escape

    title = "episodes that ended by an infrastructure error, and are not trained on"
    heads = ("failed", "episodes", "at an action", "the last of these actions")
    table = _table(title, ("task", "run"), heads)
    for run in runs:
        for task, one in run.failures().items():
            # The agent chose the text: `repr` shows line breaks and escape sequences of terminals.
            last = "–" if one.last_action is None else escape(repr(one.last_action[:60]))
            numbers = (str(one.failed), str(one.episodes), str(one.at_actions))
            table.add_row(task, str(run.path), *numbers, last)
    console.print(table)


def _print_evaluations(console: Console, runs: Sequence[Run]) -> None:
    from air.train.loop.progress import number
    from air.trajectories.evaluations import best_metric, best_step

    columns = ("reward", "± s.e.", "phi", "test score", "episodes", "failed")
    table = _table("evaluations during the run", ("run", "after step"), (*columns, "best"))
    for run in runs:
        metric = best_metric(run.path)
        best = best_step(run.evaluations, metric, [row["step"] for row in run.evaluations])
        for row in run.evaluations:
            table.add_row(
                str(run.path),
                str(row["step"]),
                number(row["reward"], "+z.3f"),
                number(row.get("reward_stderr")),
                number(row.get("phi")),
                number(row.get("test_score")),
                str(row["episodes"]),
                str(row["failed_episodes"]),
                f"by {metric}" if row["step"] == best else "",
            )
    console.print(table)


def _print_exactness(console: Console, runs: Sequence[Run]) -> None:
    """Prints a table that shows, for each run, how much two log-probabilities of the sampled tokens differ:
    the trainer's and the sampler's. They should be equal. If only one run has these numbers, also prints them
    for each version of the weights."""
    from air.trajectories.exactness_report import exactness

    reports = {str(run.path): report for run in runs if (report := exactness(run.steps))}
    if not reports:
        return
    heads = (
        "tokens",
        "mismatch_kl",
        "largest",
        "|Δ log p|",
        "largest",
        "older weights",
        "branches",
    )
    table = _table("sampler against trainer, over trained tokens", ("run",), heads)
    for name, report in reports.items():
        branches = f"{report.branches_mean:.2f}" if report.branches_mean is not None else "–"
        table.add_row(name, *_agreement(report.total), str(report.off_policy_tokens), branches)
        for version, agreement in report.versions.items() if len(reports) == 1 else ():
            table.add_row(f"  weights of step {version}", *_agreement(agreement), "", "")
    console.print()
    console.print(table)


def _agreement(agreement: Agreement) -> list[str]:
    values = (
        agreement.mismatch_kl_mean,
        agreement.mismatch_kl_max,
        agreement.logprob_diff_mean,
        agreement.logprob_diff_max,
    )
    return [str(agreement.tokens), *(f"{value:.1e}" for value in values)]


def _print_rows(
    console: Console, title: str, rows: Sequence[Row], report: Report, *, with_test: bool
) -> None:
    from air.train.loop.progress import number

    columns: dict[str, Callable[[Row], str]] = {
        "base": lambda r: number(report.tasks[r.task].baseline, ".4f"),
        "mean": lambda r: number(r.mean, ".4f"),
        "± s.e.": lambda r: number(r.stderr, ".4f"),
        "best": lambda r: number(r.best, ".4f"),
        "n": lambda r: str(r.n) if r.scored == r.n else f"{r.n} ({r.scored} scored)",
    }
    if with_test:
        columns["test"] = lambda r: number(r.test, ".4f")
    title = f"{title} of each episode, on the validation split"
    table = _table(title, ("task", "metric", "run"), tuple(columns))
    for row in rows:
        start = report.tasks[row.task]
        metric = f"{start.metric} {'↑' if start.direction == 'higher' else '↓'}"
        table.add_row(row.task, metric, row.method, *(cell(row) for cell in columns.values()))
    console.print(table)


def _print_profile(console: Console, title: str, profile: Profiles) -> None:
    import math

    from air.trajectories.performance_profile import share

    title = f"{title}: share of {len(profile.ratios)} tasks within a factor of the best; AUP"
    heads = [f"≤{ratio:g}" for ratio in RATIOS]
    table = _table(title, ("run",), (*heads, "infeasible", "AUP"))
    for method, aup in sorted(profile.aup.items(), key=lambda item: -item[1]):
        ratios = [one.by_method[method] for one in profile.ratios.values()]
        infeasible = sum(method in one.infeasible for one in profile.ratios.values())
        shares = [f"{share(ratios, math.log10(ratio)):.2f}" for ratio in RATIOS]
        table.add_row(method, *shares, str(infeasible), f"{aup:.4f}")
    console.print(table)


def _table(title: str, left: Sequence[str], right: Sequence[str]) -> Any:
    from air.train.loop.progress import plain_table

    table = plain_table(title)
    for name in left:
        table.add_column(name, no_wrap=True)
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _as_json(
    runs: Sequence[Run], report: Report, bad: Sequence[tuple[Path, str]]
) -> dict[str, Any]:
    """Returns the report as data for JSON, with unrounded numbers. `bad` lists the runs that could not be
    read, as pairs (folder, error message)."""
    from dataclasses import asdict

    from air.trajectories.exactness_report import exactness

    reports = [exactness(run.steps) for run in runs]
    return {
        "v": 1,
        "runs": [
            {
                "path": str(run.path),
                "episodes": run.counts(),
                "failures": {task: asdict(one) for task, one in run.failures().items()},
                "steps": len(run.steps),
                "terms": run.terms(),
                "reward_first_quarter": run.rewards()[0],
                "reward_last_quarter": run.rewards()[1],
                "evaluations": [dict(row) for row in run.evaluations],
                "exactness": asdict(agreement) if agreement else None,
            }
            for run, agreement in zip(runs, reports, strict=True)
        ],
        "bad": [{"path": str(path), "problem": problem} for path, problem in bad],
        "methods": report.methods,
        "tasks": {
            name: {"metric": s.metric, "direction": s.direction, "baseline": s.baseline}
            for name, s in report.tasks.items()
        },
        "rows": {view: [asdict(row) for row in rows] for view, rows in report.rows.items()},
        "profiles": {view: _profile_json(profile) for view, profile in report.profiles.items()},
        "notes": report.notes,
    }


def _profile_json(profile: Profiles) -> dict[str, Any]:
    return {
        "aup": dict(profile.aup),
        "tau": list(profile.taus),
        "rho": {method: list(values) for method, values in profile.rho.items()},
        "ratios": {
            task: {"by_method": dict(one.by_method), "infeasible": sorted(one.infeasible)}
            for task, one in profile.ratios.items()
        },
        "left_out": list(profile.left_out),
    }
