"""The index of one training run, in which the views find episodes without reading whole recordings.

The index is a SQLite file in the cache folder. It has the main facts about every episode (`Facts`), and the
position of every line in the episode's trajectory, its recording (`Place`). The file can be deleted at any
time; the next use creates it again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from air.json_lines import load
from air.trajectories import metric_rows
from air.view.index.facts import Place
from air.view.index.index_file import IndexFile
from air.view.index.sqlite_schema import (
    COLUMNS,
    JOINED,
    PLACES,
    SORTS,
    Episode,
    Filter,
    episode_of,
    translated,
)
from air.view.index.sqlite_schema import where as condition
from air.view.render.metric_series import TIMES

__all__ = ["SORTS", "Episode", "Filter", "RunIndex"]


class RunIndex:
    """The index of the training run in `folder`, which answers queries about the run's recorded episodes.

    Call `file.refresh`, which reads new lines of the recordings, before the first query. The constructor
    raises MissingError if `folder` does not exist, and UsageError if the index cannot be written; a query
    raises InfrastructureError if SQLite fails.
    """

    def __init__(self, folder: Path) -> None:
        self.file = IndexFile(folder)
        """The SQLite file of this index."""

    def count(self, conditions: Filter | None = None) -> int:
        """Returns the number of episodes that meet the filter `conditions` (None: of all episodes)."""
        where, values = condition(conditions or Filter())
        rows = self.file.ask(f"SELECT count(*) FROM {JOINED} WHERE {where}", values)
        return int(rows[0][0])

    def episodes(
        self,
        conditions: Filter | None = None,
        *,
        sort: str = "newest",
        offset: int = 0,
        limit: int = 100,
    ) -> list[Episode]:
        """Returns the episodes that meet the filter `conditions` (None: all), sorted by `SORTS[sort]`: at
        most `limit`, beginning at position `offset` of the sorted list."""
        where, values = condition(conditions or Filter())
        rows = self.file.ask(
            f"SELECT {COLUMNS} FROM {JOINED} WHERE {where} ORDER BY {SORTS[sort]}, f.name "
            "LIMIT ? OFFSET ?",
            [*values, limit, offset],
        )
        return [episode_of(row) for row in rows]

    def episode(self, name: str) -> Episode | None:
        """Returns the episode whose id, or whose file name without suffix, is `name`. Returns None if there
        is none."""
        query = f"SELECT {COLUMNS} FROM {JOINED} WHERE f.name = ? OR e.episode = ? LIMIT 1"
        rows = self.file.ask(query, [name, name])
        return episode_of(rows[0]) if rows else None

    def group(self, step: int, number: int) -> list[Episode]:
        """Returns the episodes of one group: the episodes of a task whose rewards were compared. `step` is
        the training step, and `number` the group's number in it. The order is that in `groups.jsonl`;
        episodes without a recording are left out."""
        query = f"SELECT {COLUMNS} FROM {JOINED} WHERE m.step = ? AND m.grp = ? ORDER BY m.rowid"
        return [episode_of(row) for row in self.file.ask(query, [step, number])]

    def has_steps(self) -> bool:
        """Returns whether the index knows to which training step episodes belong (from the run's file
        `groups.jsonl`)."""
        return bool(self.file.ask("SELECT 1 FROM members LIMIT 1"))

    def groups(self) -> list[dict[str, Any]]:
        """Returns the lines of the run's `groups.jsonl`, oldest first. Each describes a group: the episodes
        of a task whose rewards were compared."""
        return self._log("groups")

    def metrics(self) -> list[dict[str, Any]]:
        """Returns the lines of the run's `metrics.jsonl` (one for each training step), oldest first. Outdated
        names of metrics are replaced by the present names."""
        return [metric_rows.current(row) for row in self._log("metrics")]

    def tasks(self) -> list[str]:
        """Returns the ids of the tasks that were played in the run's episodes, sorted."""
        query = "SELECT DISTINCT task FROM episodes WHERE task IS NOT NULL ORDER BY task"
        return [row[0] for row in self.file.ask(query)]

    def models(self) -> list[str]:
        """Returns the names of the models that played in the run's episodes, sorted."""
        query = "SELECT DISTINCT model FROM episodes WHERE model IS NOT NULL ORDER BY model"
        return [row[0] for row in self.file.ask(query)]

    def totals(self) -> dict[str, Any]:
        """Returns numbers about all episodes of the run, by name: how many there are (`episodes`) and how
        many ended in each way (`well`, `failed`, `unfinished`), the mean `reward`, the sum of `turns`, the
        sum of seconds for each activity (`seconds_…`), and the times of the first start and the last end
        (`started`, `ended`; seconds since the epoch)."""
        names = [*(f"seconds_{name}" for name in TIMES), "turns"]
        sums = ", ".join(f"sum({name}) AS {name}" for name in names)
        query = (
            "SELECT count(*) AS episodes, sum(how = 'well') AS well, sum(how = 'failed') AS failed, "
            f"sum(how = 'unfinished') AS unfinished, avg(reward) AS reward, {sums}, "
            "min(started) AS started, max(ended) AS ended FROM episodes"
        )
        return dict(self.file.ask(query)[0])

    def by_task(self) -> list[dict[str, Any]]:
        """Returns a dict for each task, sorted by id, with `task` (its id), `metric`, `direction`,
        `baseline`, the number of `episodes`, and the results.

        The results are the mean reward (`reward`), the mean of the episodes' last scores (`score`), the best
        score (`best`) and the mean test score (`test`).
        """
        query = (
            "SELECT task, max(metric) AS metric, max(direction) AS direction, max(baseline) AS baseline, "
            "count(*) AS episodes, avg(reward) AS reward, avg(score) AS score, avg(test) AS test, "
            "CASE max(direction) WHEN 'lower' THEN min(best) ELSE max(best) END AS best "
            "FROM episodes WHERE task IS NOT NULL GROUP BY task ORDER BY task"
        )
        return [dict(row) for row in self.file.ask(query)]

    def scores(self, column: str, *, last_quarter: bool) -> list[dict[str, Any]]:
        """Returns a dict with `model`, `task`, `metric`, `direction`, `baseline` and `value` for each episode
        that ended well.

        `column` is the field of `Facts` that becomes `value`: score, best, test or reward. With
        `last_quarter`, returns only the episodes of the last quarter of the training steps; for a run without
        training steps, returns all episodes.
        """
        if column not in ("score", "best", "test", "reward"):
            raise ValueError(f"no such score: {column}")
        steps = [row["step"] for row in self.metrics()] if last_quarter else []
        since = sorted(steps)[-max(1, len(steps) // 4)] if steps else None
        query = (
            "SELECT e.model, e.task, e.metric, e.direction, e.baseline, "
            f"e.{column} AS value FROM {JOINED} WHERE e.how = 'well' AND e.task IS NOT NULL "
            "AND (? IS NULL OR m.step >= ?) ORDER BY e.started"
        )
        return [dict(row) for row in self.file.ask(query, [since, since])]

    def problems(self) -> list[tuple[str, int]]:
        """Returns a pair (file name without suffix, number of unreadable lines) for each file that has such
        lines."""
        rows = self.file.ask("SELECT name, problems FROM files WHERE problems > 0 ORDER BY name")
        return [(row[0], row[1]) for row in rows]

    def items(self, episode: Episode) -> int:
        """Returns the number of items of an episode. An item is a turn with its gradings."""
        rows = self.file.ask("SELECT max(item) FROM lines WHERE file = ?", [episode.file])
        return 0 if rows[0][0] is None else int(rows[0][0]) + 1

    def curve(self, episode: Episode) -> list[Place]:
        """Returns the `Place` (with position and score) of each `validate` line in an episode's recording, in
        order, for instance to draw the curve of the scores. Each such line records a grading of the agent's
        result."""
        return self._places("file = ? AND kind = 'validate'", [episode.file])

    def places(self, episode: Episode, first: int, count: int) -> list[Place]:
        """Returns the position (`Place`) of each line in `count` items of an episode, beginning with the item
        at position `first` (from 0). An item is a turn with its gradings."""
        where = "file = ? AND item >= ? AND item < ?"
        return self._places(where, [episode.file, first, first + count])

    def head(self, episode: Episode) -> list[Place]:
        """Returns the position (`Place`) of each line in an episode's recording that belongs to no turn, such
        as `start`."""
        return self._places("file = ? AND item = -1", [episode.file])

    def jump(self, episode: Episode, item: int, what: str, *, back: bool = False) -> int | None:
        """Searches an episode for the next item (a turn with its gradings) after the item at position `item`,
        and returns its position (from 0). The found item contains a failure if `what` is "error" (see
        `Place.bad`), or a grading if `what` is "validate".

        Returns None if there is no such item. With `back`, searches backwards.
        """
        which = {"validate": "kind = 'validate'", "error": "bad = 1"}[what]
        compare, pick = ("<", "max") if back else (">", "min")
        query = f"SELECT {pick}(item) FROM lines WHERE file = ? AND item {compare} ? AND {which}"
        number = self.file.ask(query, [episode.file, item])[0][0]
        return None if number is None or number < 0 else int(number)

    def load(self, episode: Episode, places: Sequence[Place]) -> list[dict[str, Any]]:
        """Reads the lines at the positions `places` from an episode's recording, and returns them as dicts.

        Raises ConfigError if the file has changed since it was indexed.
        """
        path = self.file.trajectories / f"{episode.name}.jsonl"
        with translated(path):
            return load(path, ((place.offset, place.length) for place in places))

    def _log(self, kind: str) -> list[dict[str, Any]]:
        rows = self.file.ask("SELECT data FROM log WHERE kind = ? ORDER BY seq", [kind])
        return [json.loads(row[0]) for row in rows]

    def _places(self, where: str, values: Sequence[Any]) -> list[Place]:
        query = f"SELECT {', '.join(PLACES)} FROM lines WHERE {where} ORDER BY seq"
        return [Place(*row) for row in self.file.ask(query, values)]
