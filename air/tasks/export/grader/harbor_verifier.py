"""The test program of a task that was exported from air to Harbor: grades the agent's artefact in Harbor's
verifier container, and writes /logs/verifier/reward.json.

`air tasks export` copies this file, as `verify.py`, and `air/rewards/normalise.py` into the `tests/` folder
of the exported task; they run there with Python's standard library only. `settings.json` in that folder
names the artefact and all settings of grading. Its subfolder `grader/` contains the task's grader and the
hidden data.

The keys of reward.json: `reward` is the normalised score on the validation split, from which air's own
rewards are computed; `test_reward` is the normalised score on the test split; `val_NAME` and `test_NAME`
are the grader's metrics. An artefact that is missing or cannot be graded gets the lowest normalised score
and no metrics. If the grader fails even on an empty artefact, the program writes no file and exits with
status 1.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

from normalise import phi

TESTS = Path(__file__).resolve().parent
ROOT = Path("/")
BAD_ARTEFACT = 3
SECOND_UID = 65533
"""The user id under which the grader runs the agent's code; the container needs no account with this id."""
NOT_GRADED = "the grader could not grade it"
MOST_RESULT = 1_000_000
PR_SET_CHILD_SUBREAPER = 36


class BadArtefact(Exception):
    """Raised if the agent's artefact is missing or malformed, or makes the grader fail."""


class GraderFailed(Exception):
    """Raised if the grader ended without a valid result."""


def main(tests: Path = TESTS, root: Path = ROOT) -> int:
    """Grades the artefact on the validation and the test split, and writes the rewards to reward.json.
    Returns the program's exit status. `tests` is the folder of this program, and `root` the container's root
    folder; tests of this function give other folders."""
    settings = json.loads((tests / "settings.json").read_text(encoding="utf-8"))
    tests.chmod(0o700)  # the agent's code, which runs as another user, must not read what is hidden
    _adopt_orphans()
    rewards: dict[str, float] = {}
    try:
        grader = Grader(settings, tests, root)
        grader.collect()
        for split, key in (("val", "reward"), ("test", "test_reward")):
            rewards |= _rewards(settings, grader, split, key)
    except BadArtefact as error:
        print(f"the artefact is bad: {error}")
        rewards = dict.fromkeys(("reward", "test_reward"), settings["clip"][0])
    except GraderFailed as error:
        print(f"the grader failed on an empty artefact too: {error}", file=sys.stderr)
        return 1
    file = root / "logs" / "verifier" / "reward.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(rewards), encoding="utf-8")
    return 0


def _rewards(settings: dict[str, Any], grader: Grader, split: str, key: str) -> dict[str, float]:
    """Grades the artefact on `split`, and returns entries of reward.json: the normalised score under the key
    `key`, and each metric under the key `SPLIT_NAME`, such as `val_accuracy`. If the artefact is bad, returns
    only the lowest normalised score."""
    try:
        metrics = grader.measure(split)
    except BadArtefact as error:
        print(f"{split}: {error}")
        return {key: settings["clip"][0]}
    names = ("baseline", "target", "direction", "normalise", "optimum", "clip")
    value = phi(metrics[settings["metric"]], **{name: settings[name] for name in names})
    print(f"{split}: {metrics}")
    return {key: value} | {f"{split}_{name}": number for name, number in metrics.items()}


class Grader:
    """Runs the task's grader on copies of the agent's artefact. The grader and the copy of the artefact
    each have a folder of their own below `root`."""

    def __init__(self, settings: dict[str, Any], tests: Path, root: Path) -> None:
        self._settings = settings
        self._tests = tests
        self._home = root / "workspace"
        self._program = root / "grader"
        self._artefact = root / "artefact"

    def collect(self) -> None:
        """Copies the artefact out of the agent's workspace. Raises BadArtefact if the artefact is missing,
        exceeds its limits, or contains anything but regular files."""
        _fresh(self._artefact)
        remaining = int(self._settings["artefact_mb"] * 2**20)
        count = 0
        for name in self._settings["artefacts"]:
            for path in _listed(self._home, name):
                data = _read(self._home, path, remaining)
                remaining -= len(data)
                count += 1
                if count > self._settings["most_files"]:
                    raise BadArtefact(f"it has more than {self._settings['most_files']} files")
                target = self._artefact / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)

    def measure(self, split: str) -> dict[str, float]:
        """Returns the artefact's metrics on a split. If the task asks for several gradings with different
        seeds, each metric is the mean over them."""
        grades = [self._once(split, seed) for seed in self._settings["seeds"]]
        if len(grades) == 1:
            return grades[0]
        names = [name for name in grades[0] if all(name in grade for grade in grades)]
        return {name: fmean(grade[name] for grade in grades) for name in names}

    def _once(self, split: str, seed: int) -> dict[str, float]:
        """Returns the metrics of the artefact for one split and seed. A grader that fails runs once more. If
        it fails again, it runs on an empty artefact. Raises GraderFailed if this run fails, too, and
        BadArtefact if it does not."""
        try:
            return self._attempt(split, seed, self._artefact)
        except GraderFailed as error:
            print(f"{split}: {error}; it is graded once more", file=sys.stderr)
        try:
            return self._attempt(split, seed, self._artefact)
        except GraderFailed as error:
            print(f"{split}: {error}", file=sys.stderr)
        empty = self._artefact.with_name("empty")
        _fresh(empty)
        for name in self._settings["artefacts"]:
            file = empty / (f"{name}empty" if name.endswith("/") else name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"")
        with contextlib.suppress(BadArtefact):
            self._attempt("val", self._settings["seeds"][0], empty)
        raise BadArtefact(NOT_GRADED)

    def _attempt(self, split: str, seed: int, artefact: Path) -> dict[str, float]:
        shutil.rmtree(self._program, ignore_errors=True)
        shutil.copytree(self._tests / "grader", self._program)
        out = self._program / "result.json"
        script = self._program / self._settings["script"]
        options = {"artefact": artefact, "split": split, "seed": seed, "out": out}
        command = [sys.executable, str(script)]
        command += [str(word) for key, value in options.items() for word in (f"--{key}", value)]
        code, output = self._run(command)
        if code not in (0, BAD_ARTEFACT):
            last = (output.strip().splitlines() or ["no output"])[-1]
            raise GraderFailed(f"the grader ended with {code}: {last[:500]}")
        try:
            with out.open(encoding="utf-8") as file:
                result = json.loads(file.read(MOST_RESULT))
            if code == BAD_ARTEFACT:
                raise BadArtefact(str(result["message"])[:500])
            metrics = {k: float(v) for k, v in result["metrics"].items() if _usable(v)}
            if self._settings["metric"] not in metrics:
                raise GraderFailed(f"its result has no {self._settings['metric']}")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise GraderFailed(f"the grader ended with {code}, but no result: {error}") from error
        return metrics

    def _run(self, command: list[str]) -> tuple[int, str]:
        """Runs the grader's command and kills all processes that it leaves. Returns the exit status (124 if
        the time limit ended the command) and the output."""
        env = {"HOME": str(self._home), "PATH": os.environ.get("PATH", os.defpath)}
        env |= {"LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
        if self._settings["runs_agent_code"]:
            env["AIR_SECOND_UID"] = str(SECOND_UID)
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self._home,
            env=env,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(timeout=self._settings["grade_seconds"])
                code = process.returncode
            except subprocess.TimeoutExpired:
                code, output = 124, f"took over {self._settings['grade_seconds']:g} s"
            finally:
                process.kill()
                process.wait()
                _end_children()
        return code, output


def _listed(home: Path, name: str) -> list[str]:
    """Returns the files, as paths relative to the workspace `home`, of the declared artefact `name`: the
    file itself, or all files below a folder. Raises BadArtefact if the folder is missing or empty."""
    if not name.endswith("/"):
        return [name]
    folder = home / name
    if _linked(home, name) or not folder.is_dir():
        raise BadArtefact(f"there is no folder {name}")
    paths: list[str] = []
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(one for one in folders if one != "__pycache__")
        linked = [one for one in folders if (Path(place) / one).is_symlink()]
        paths += [str((Path(place) / one).relative_to(home)) for one in [*sorted(files), *linked]]
    if not paths:
        raise BadArtefact(f"the folder {name} is empty")
    return paths


def _read(home: Path, name: str, most: int) -> bytes:
    """Returns the bytes of the workspace's file `name`. Raises BadArtefact if it is unreadable, larger than
    `most` bytes, not a regular file, or reached through a link, because a link could lead to hidden data."""
    try:
        if _linked(home, name):
            raise BadArtefact(f"{name} is a link")
        path = home / name
        if not stat.S_ISREG(path.lstat().st_mode):
            raise BadArtefact(f"{name} is no regular file")
        with path.open("rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise BadArtefact(f"{name} cannot be read: {error.strerror}") from None
    if len(data) > most:
        raise BadArtefact(f"{name} is too large")
    return data


def _linked(home: Path, name: str) -> bool:
    """Whether the path `name` below the workspace, or one of its parent folders there, is a symbolic link."""
    steps = [home / part for part in (Path(name), *Path(name).parents) if str(part) != "."]
    return any(step.is_symlink() for step in steps)


def _usable(value: object) -> bool:
    """Whether a metric's value is a finite number."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def _fresh(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o755)


def _adopt_orphans() -> None:
    """Makes this process the parent of its orphaned descendants, so that `_end_children` can kill all of
    them."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl refuses PR_SET_CHILD_SUBREAPER")


def _end_children() -> None:
    """Kills all descendants of this process. The children of a killed process become children of this
    process and are killed next, until none is left."""
    while children := _children():
        for pid in children:
            os.kill(pid, signal.SIGKILL)  # its id is valid until `waitpid` below
        for pid in children:
            os.waitpid(pid, 0)


def _children() -> list[int]:
    pids = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # the process has ended
            if int(file.read_text(errors="replace").rpartition(")")[2].split()[1]) == os.getpid():
                pids.append(int(file.parent.name))
    return pids


if __name__ == "__main__":
    sys.exit(main())
