"""The page on integrity names tests that exist, and counts the attacks as they are."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from air.integrity.attacks import ATTACKS, BOX_ATTACKS
from air.integrity.tools_and_checkers import PART_ATTACKS
from air.sandbox.conformance import CHECKS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "integrity.md").read_text()


def test_every_test_that_the_page_names_exists() -> None:
    files: dict[str, list[Path]] = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        files.setdefault(path.name, []).append(path)
    named = set(re.findall(r"`(test_\w+\.py)::(test_\w+)`", PAGE))
    assert len(named) > 80
    missing = [
        f"{file}::{test}"
        for file, test in sorted(named)
        if not any(f"def {test}(" in path.read_text() for path in files.get(file, []))
    ]
    assert not missing
    assert set(re.findall(r"`conformance::([\w-]+)`", PAGE)) <= {check.name for check in CHECKS}


def test_the_page_counts_the_attacks() -> None:
    text = " ".join(PAGE.split())
    assert (
        f"It has {len(ATTACKS)} attacks that are played as episodes, and {len(BOX_ATTACKS)} on"
        in text
    )
    rows = re.findall(r"^\| ([a-z -]+) \| (\d+) \|", PAGE, re.MULTILINE)
    counts = Counter(attack.family for attack in ATTACKS)
    counts += Counter(family for family, _ in BOX_ATTACKS)
    assert {family: int(count) for family, count in rows} == counts
    of_parts = re.search(
        r"\[answer checker\]\S+: (\d+) attacks in seven families \(([^)]*)\)", text
    )
    assert of_parts, "the sentence on tools and answer checkers"
    assert int(of_parts[1]) == len(PART_ATTACKS)
    assert set(of_parts[2].split(", ")) == {attack.family for attack in PART_ATTACKS}
