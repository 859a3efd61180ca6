"""Reports the results of attacks: a table by family (goal of the attacks), one line for each failed defence,
and a JSON file."""

from __future__ import annotations

import json
import platform
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from air import paths
from air.integrity.attack import FAMILIES
from air.integrity.verdict import AttackVerdict

VERSION = 1


def table(verdicts: Sequence[AttackVerdict]) -> list[tuple[str, ...]]:
    """Returns a table as a list of rows: a heading, one row for each family of attacks (attacks with the same
    goal), and a row for all attacks. The columns are the family, the number of its attacks, and the numbers
    of its results `held`, `broken` (the defence failed) and `not applicable`.

    An attack that was run on five tasks counts as one attack with five results.
    """
    rows: list[tuple[str, ...]] = [("family", "attacks", "held", "broken", "not applicable")]
    for family in (*FAMILIES, "all"):
        of = [one for one in verdicts if family in (one.family, "all")]
        results = Counter(one.result for one in of)
        counts = (results["held"], results["broken"], results["not applicable"])
        rows.append((family, str(len({one.attack for one in of})), *map(str, counts)))
    return rows


def broken(verdicts: Sequence[AttackVerdict]) -> list[str]:
    """Returns one line for each verdict that the defence failed: the task, the kind of box, the attack and
    its family, a description of the failure, and what the agent gains."""
    return [
        f"{one.task}, {one.provider}: {one.attack} ({one.family}): {one.reason} — {one.aim}"
        for one in verdicts
        if one.result == "broken"
    ]


def write(file: Path, verdicts: Sequence[AttackVerdict]) -> None:
    """Writes a JSON file: the verdicts, the time, and the versions of air and Python."""
    report = {
        "v": VERSION,
        "time": round(time.time(), 3),
        "versions": {"air": version("air-agent"), "python": platform.python_version()},
        "verdicts": [asdict(one) for one in verdicts],
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    paths.write_whole(file, json.dumps(report, indent=1).encode())
