"""`make mutants`: takes each defence out, in a copy of the tree, and sees a named test turn red.

First all named tests must be green as they are. Then, one mutant at a time: its tests and the one that
must stay green are run with the mutated file. Exit code 0 when every mutant was killed, 1 else.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from air.errors import InfrastructureError
from air.sandbox.docker import air_images
from air.sandbox.ops import orphans
from air.sandbox.process import namespaces
from tests.mutants import Mutant, table

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("air", "tests", "tasks", "configs", "images", "pyproject.toml")
_SUBREAPER = 36
_REPORT = re.compile(r"^(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) (\S.*?)(?: - .*)?$")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument(
        "--only", metavar="WORDS", help="mutants with these words in their name, file or tests"
    )
    parser.add_argument("--list", action="store_true", help="name the mutants and stop")
    parser.add_argument(
        "--seconds", type=float, default=300, help="limit for the tests of one mutant"
    )
    args = parser.parse_args()
    mutants = [m for m in table() if not args.only or args.only in f"{m.name} {m.file} {m.tests}"]
    if not mutants:
        parser.error(f"no mutant has {args.only!r} in its name, file or tests")
    if args.list:
        print("\n".join(f"{m.file:<38} {m.name}" for m in mutants))
        return 0
    # Whatever a mutated test leaves running becomes our child, and ends with its turn.
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    if (why := air_images.why_not_ready()) and os.environ.get("AIR_REQUIRE_DOCKER") != "1":
        skipped = [m for m in mutants if m.docker]
        mutants = [m for m in mutants if not m.docker]
        print(f"{len(skipped)} mutants are left out: {why}", flush=True)
    if (found := namespaces.detect()).mode != "root":
        print(f"{sum(m.root for m in mutants)} mutants are left out: {found.reason}", flush=True)
        mutants = [m for m in mutants if not m.root]
    with _copy() as tree:
        return _play(mutants, tree, args.seconds)


def _play(mutants: Sequence[Mutant], tree: Path, seconds: float) -> int:
    named = dict.fromkeys(test for m in mutants for test in (*m.tests, m.still) if test)
    print(f"{len(named)} tests as they are …", flush=True)
    report = _tests(tree, named, seconds=10 * seconds, explain=True)
    red = [test for test in named if _state(report, test) != "PASSED"]
    if red or report is None:
        print("not green before any mutation:", *red, sep="\n  ")
        return 1
    failed = 0
    for mutant in mutants:
        begun = time.monotonic()
        verdict = _turn(mutant, tree, seconds)
        failed += not verdict.startswith("killed")
        took = time.monotonic() - begun
        print(f"{verdict:<28} {took:5.1f} s  {mutant.name}  ({mutant.file})", flush=True)
    print(f"{len(mutants)} mutants, {failed} not killed")
    return 1 if failed else 0


def _turn(mutant: Mutant, tree: Path, seconds: float) -> str:
    """One mutant's verdict: `killed …`, or what is wrong, in capitals."""
    file = tree / mutant.file
    source = file.read_text(encoding="utf-8")
    try:
        file.write_text(mutant.applied(source), encoding="utf-8")
    except ValueError as error:
        return f"DOES NOT APPLY: {error}"
    # What stays green first: a test that turns red may leave warnings to the next one.
    tests = [test for test in (mutant.still, *mutant.tests) if test]
    try:
        report = _tests(tree, tests, seconds=seconds)
    finally:
        file.write_text(source, encoding="utf-8")
    if report is None:
        return "killed (out of time)"
    if mutant.still and _state(report, mutant.still) != "PASSED":
        return "BREAKS MORE THAN IT SHOULD"
    return "killed" if any(_state(report, t) == "FAILED" for t in mutant.tests) else "SURVIVED"


def _state(report: dict[str, str] | None, test: str) -> str:
    """Of a test, or of all that a function was given: PASSED only if all did, FAILED if one."""
    states = [
        state
        for name, state in (report or {}).items()
        if name == test or name.startswith(test + "[")
    ]
    if any(state in ("FAILED", "ERROR") for state in states):
        return "FAILED"
    return "PASSED" if states and set(states) == {"PASSED"} else "MISSING"


def _tests(
    tree: Path, tests: Iterable[str], *, seconds: float, explain: bool = False
) -> dict[str, str] | None:
    """Runs tests in the copy: the outcome of each by its node id; None where time ran out. `explain`:
    prints why, where one is red."""
    with tempfile.TemporaryDirectory(prefix="air-mutant-") as scratch:
        own = {"TMPDIR": scratch, "AIR_CACHE": f"{scratch}/cache", "AIR_REQUIRE_DOCKER": "1"}
        own |= {"AIR_FULL": "1"}  # tests of full matrices are named, too
        own |= {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rfEpsxX"]
        command += ["--color=no", "--tb=short", *tests]
        output = Path(scratch, "output")  # a pipe would be held open by what a mutant leaves
        with output.open("w") as sink:
            process = subprocess.Popen(
                command,
                cwd=tree,
                env=os.environ | own,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end_children()
            process.wait()
            _collect()
        said = output.read_text(errors="replace")
    matches = (match for line in said.splitlines() if (match := _REPORT.match(line)))
    found = {match[2]: match[1] for match in matches}
    if explain and {"FAILED", "ERROR"} & set(found.values()):
        print(said)
    return found


def _end_children() -> None:
    """Kills everything that descends from this process, until nothing does."""
    while children := list(_descendants(os.getpid())):
        for pid in children:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for pid in children:
            try:
                os.waitpid(pid, 0)
            except ChildProcessError:
                continue  # its own parent, or subprocess, has reaped it


def _descendants(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        for child in map(int, children):
            yield from _descendants(child)
            yield child


def _collect() -> None:
    """Removes containers whose harness is dead; their guests have ended with it."""
    try:
        orphans.collect()
    except InfrastructureError as error:
        print(f"what a mutant left could not be removed: {error}", file=sys.stderr)


@contextmanager
def _copy() -> Iterator[Path]:
    """A copy of the tree in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="air-mutants-") as name:
        tree = Path(name, "tree")
        tree.mkdir()  # unlike the temporary folder itself, it can be made readable for other users
        for part in PARTS:
            if (ROOT / part).is_dir():
                ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
                shutil.copytree(ROOT / part, tree / part, ignore=ignore)
            else:
                shutil.copy(ROOT / part, tree / part)
        imported = subprocess.check_output(
            [sys.executable, "-c", "import air; print(air.__file__)"],
            env=os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"},
            cwd=tree,
            text=True,
        )
        if not imported.startswith(f"{tree}/"):
            sys.exit(f"the tests would import air from {imported.strip()}, not from the copy")
        yield tree


if __name__ == "__main__":
    sys.exit(main())
