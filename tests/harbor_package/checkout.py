"""Reads every Harbor task below a folder with air and with Harbor's package; says what cannot be played.

`python -m tests.harbor_package.checkout DIR [REPORT]`; AIR_HARBOR_PYTHON names the interpreter that has
Harbor.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from air.errors import AirError
from air.sandbox.docker import engine
from air.tasks.sources.harbor import folder, unsupported_features

STOCK = Path(__file__).with_name("stock.py")
_AT_ONCE = 500
"""Folders that one process of Harbor's interpreter looks at: a command line has room for so many."""
_FROM = re.compile(r"^\s*FROM\s+(?:--\S+\s+)*(\S+)(?:\s+AS\s+(\S+))?", re.MULTILINE | re.IGNORECASE)
_DETAIL = re.compile(r"'[^']*'|\"[^\"]*\"")
"""What differs between reasons of one kind."""


def looked_at(root: Path) -> list[dict[str, Any]]:
    """Returns a row for each task: what air says, what Harbor says, and images that are not here."""
    paths = sorted(
        {
            file.parent
            for file in root.rglob("task.toml")
            if (file.parent / "instruction.md").exists() or (file.parent / "steps").is_dir()
        }
    )
    verdicts = {line["path"]: line for line in _stock(paths)}
    return [_row(root, path, verdicts[str(path)]) for path in paths]


def _row(root: Path, path: Path, stock: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {"task": str(path.relative_to(root)), "state": "ready", "reason": ""}
    row |= {"harbor_error": stock["error"], "lint": stock["lint"], "same_digest": None}
    try:
        task = folder.read(path)
        refused = unsupported_features.refusals(task)
    except AirError as error:
        return row | {"state": "invalid", "reason": str(error).replace(str(path), "")}
    row["same_digest"] = f"sha256:{stock['digest']}" == task.digest if stock["digest"] else None
    if refused:
        return row | {"state": "refused", "reason": "; ".join(refused)}
    if absent := sorted(set(_bases(task))):
        return row | {"state": "no image", "reason": f"not on this machine: {', '.join(absent)}"}
    return row


def _bases(task: folder.HarborFolder) -> Iterator[str]:
    """Yields the images that the task is made of and that this machine lacks."""
    environment = task.config.environment
    names = [environment.docker_image] if environment.docker_image else []
    for file in (task.dockerfile, task.verifier_dockerfile):
        if file is not None and not (file == task.dockerfile and environment.docker_image):
            stages = _FROM.findall(file.read_text(encoding="utf-8", errors="replace"))
            own = {alias.lower() for _, alias in stages if alias}
            names += [name for name, _ in stages if name.lower() not in own | {"scratch"}]
    for name in names:
        if engine.image(name) is None:
            yield name


def _stock(paths: list[Path]) -> Iterator[dict[str, Any]]:
    for start in range(0, len(paths), _AT_ONCE):
        batch = [str(path) for path in paths[start : start + _AT_ONCE]]
        argv = [os.environ["AIR_HARBOR_PYTHON"], str(STOCK), "look", *batch]
        ended = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True)
        yield from (json.loads(line) for line in ended.stdout.splitlines() if line[:1] == "{")


def main(root: Path, report: Path) -> int:
    rows = looked_at(root.resolve())
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(json.dumps({"tasks": rows}, indent=1) + "\n")
    for state, count in Counter(row["state"] for row in rows).most_common():
        print(f"{count:6} {state}")
        reasons = Counter(_DETAIL.sub("…", row["reason"]) for row in rows if row["state"] == state)
        for reason, times in reasons.most_common(20) if state != "ready" else ():
            print(f"       {times:5} {reason[:150]}")
    invalid = [row for row in rows if bool(row["harbor_error"]) != (row["state"] == "invalid")]
    digests = [row for row in rows if row["same_digest"] is False]
    print(
        f"{len(rows):6} tasks; valid for one of the two only: {len(invalid)}; digests differ: {len(digests)}"
    )
    for row in (*invalid, *digests)[:20]:
        print(f"       {row['task']}: {row['reason'] or row['harbor_error'] or 'digest'}"[:200])
    print(f"{report} has every task")
    return 1 if digests else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(*sys.argv[2:] or ["build/harbor-checkout.json"])))
