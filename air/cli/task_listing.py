"""Lists tasks for `air tasks` and `air tasks list`: air's own tasks, tasks of MLGym and Harbor (other
projects), and worlds such as games."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from air.cli.output import print_table

if TYPE_CHECKING:
    from air.tasks.sources.mlgym import Checkout, Status
    from air.tasks.spec import TaskSpec

HARBOR = "harbor:"
"""The prefix of the ids of Harbor tasks."""
EVALUATOR_CAVEAT = (
    "MLGym's evaluation imports the agent's code, so this code can make it print any score"
)


def list_tasks(roots: Sequence[Path], mlgym_root: Path | None) -> int:
    """Prints tables of air's own tasks, of the tasks in the MLGym checkout if there is one, and of worlds
    (such as games). Returns the exit code 0. `roots` are the folders of air's own tasks; if empty, the folder
    that comes with air is used. `mlgym_root` is the folder of the checkout; if None, the environment variable
    `AIR_MLGYM_ROOT` may name it."""
    from air import tasks
    from air.tasks.sources.lookup import mlgym

    specs = [tasks.load(name, roots) for name in tasks.available(roots)]
    rows = [
        (s.id, s.metric, s.direction, f"{s.baseline:.4g}", f"{s.target:.4g}", _needs(s))
        for s in specs
    ]
    print_table(("task", "metric", "better", "baseline", "target", "needs"), rows)
    if (checkout := mlgym(mlgym_root)) is not None:
        _list_mlgym(checkout)
    _list_worlds()
    return 0


def list_harbor(ids: Sequence[str]) -> int:
    """Prints a table of the Harbor tasks with the ids `ids`, and returns the exit code 0. Raises ConfigError
    if an id does not begin with `harbor:`."""
    from air.cli.harbor_tasks import listing
    from air.errors import ConfigError

    if others := [name for name in ids if not name.startswith(HARBOR)]:
        raise ConfigError(
            f"{others[0]!r} is no task of Harbor",
            where="air tasks harbor:PATH",
            remedy="`air tasks` lists the others",
        )
    return listing(ids)


def _list_worlds() -> None:
    """Prints a table of the worlds that come with air (games and other environments). Then prints the
    prefixes of worlds that cannot be listed, such as worlds at the URL of a server."""
    from air.errors import MissingError
    from air.worlds import sources

    worlds, open_ended = [], []
    for prefix in sources.SOURCES:
        try:
            names = sources.source(prefix).names()
        except MissingError as error:  # an optional package
            print(f"\nno worlds {prefix}:…: {error}")
            continue
        worlds += [sources.load(f"{prefix}:{name}") for name in names]
        open_ended += [] if names else [f"{prefix}:…"]
    rows = [
        (w.id, w.format, str(w.max_turns), "yes" if w.replays else "no", ", ".join(w.facts))
        for w in worlds
    ]
    print()
    print_table(("world", "format", "turns", "replays", "facts"), rows)
    print(f"also worlds by address ({', '.join(open_ended)}), or of your own (MODULE:NAME)")


def _needs(task: TaskSpec) -> str:
    from air.tasks.missing_resources import missing

    resources = missing(task)
    return f"{task.needs()}; missing: {', '.join(resources)}" if resources else task.needs()


def _list_mlgym(checkout: Checkout) -> None:
    """Prints a table of the tasks in an MLGym checkout with their status, and then warnings about how far
    their scores can be trusted."""
    statuses = [checkout.status(name) for name in checkout.names()]
    print()
    print_table(
        ("task", "metric", "better", "baseline", "target", "trust", "status"),
        [_status_row(status) for status in statuses],
    )
    caveats: dict[str, list[str]] = {}
    for status in statuses:
        if status.task is not None:
            if status.task.trust == "evaluator":
                caveats.setdefault(EVALUATOR_CAVEAT, []).append(status.id)
            if status.task.caveat:
                caveats.setdefault(status.task.caveat, []).append(status.id)
    for caveat, ids in caveats.items():
        print(f"\ntrust: {caveat}: {', '.join(ids)}")


def _status_row(status: Status) -> tuple[str, ...]:
    text = f"{status.state}: {status.reason}" if status.reason else status.state
    if (task := status.task) is None:
        return (status.id, *["-"] * 5, text)
    scores = (f"{task.baseline:.4g}", f"{task.target:.4g}")
    return (status.id, task.metric, task.direction, *scores, task.trust, text)
