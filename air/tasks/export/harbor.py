"""Writes one of air's tasks in the format of Harbor (a framework that runs agents on tasks in containers;
schema 1.4), as a folder from which Harbor can build, run and grade the task without air.

In the folder, `environment/` defines the agent's container image, which contains the starter files and the
agent's data. `tests/` defines a second image, that of the verifier (Harbor's word for the grader); only this
image contains the grader and the hidden data. `task.toml` states every limit, the place where the tests run,
and whether there is a network, because the defaults differ between Harbor's versions. The files depend only
on the task, so equal tasks give equal bytes.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from air import paths
from air.config import read_toml
from air.errors import ConfigError, boundary
from air.sandbox.contract.box import WORKSPACE
from air.tasks import data
from air.tasks.artefact import MOST_FILES
from air.tasks.check import Solver, read_solvers
from air.tasks.files import copy_file, walk
from air.tasks.spec import TaskSpec

SCHEMA_VERSION = "1.4"
AGENT = "agent"
"""The name of the user account under which the agent works in air's container images."""
_ORGANISATION = "air"
_BUILD_SECONDS = 600.0
_SPARE_SECONDS = 60.0
_IMAGE_MB = 1024
"""Disk space in MiB that the exported task requests in addition to its workspace, because some of the
services in which Harbor runs containers count the size of the container image too."""
_ATTEMPTS = 3
"""The largest number of times that the grader runs for one grade: twice on the artefact (the agent's files)
and, if both runs fail, once on an empty artefact. The exported time limit of the verifier allows for all of
them."""
_HERE = Path(__file__).resolve().parent
_VERIFIER = {
    "verify.py": _HERE / "grader" / "harbor_verifier.py",
    "normalise.py": _HERE.parents[1] / "rewards" / "normalise.py",
}
"""The programs that `export` copies into the container of the verifier (the grader), where the package `air`
is not installed: the path of each program on this machine, by its file name in the container."""
_TEST = """\
#!/bin/bash
# Grades the artefact and writes /logs/verifier/reward.json; without one, the grader itself is broken.
exec python3 /tests/verify.py
"""


def refusal(task: TaskSpec) -> str:
    """Returns the reason why a task cannot be exported, as one line; an empty string if the task can be
    exported."""
    if task.source is not None or task.rules is not None:
        return "only tasks in air's own format can be exported"
    if task.gpus or task.grader.gpus:
        return "tasks that need a GPU cannot be exported"
    if task.data.downloads:
        return "tasks whose data is made of downloads cannot be exported"
    if ported := [host for host in task.network if ":" in host]:
        return f"network: Harbor cannot limit {ported[0]!r} to a port"
    return ""


def export(task: TaskSpec, root: Path, *, force: bool = False) -> Path:
    """Writes the task to the folder `root/ID` in Harbor's format and returns the folder's path. `force`
    allows the function to replace an earlier export of the same task.

    Raises ConfigError if the task cannot be exported, a file of the task is invalid, or the folder already
    exists or cannot be written; MissingError if a file that the task needs is missing; and
    InfrastructureError if the task's data cannot be made.
    """
    if reason := refusal(task):
        raise ConfigError(reason, where=f"task {task.id}")
    folder = root.expanduser() / task.id
    if folder.exists() and not (force and _is_exported(folder, task)):
        raise ConfigError(
            f"there is a {folder} already" if not force else f"{folder} is no export of this task",
            remedy="choose another folder, or give --force"
            if not force
            else "choose another folder",
        )
    prepared = data.prepare(task)
    solvers = read_solvers(task) if task.solvers.is_file() else ()
    with boundary(ConfigError, f"cannot write {folder}", OSError):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{task.id}-") as place:
            made = Path(place) / task.id
            made.mkdir()
            _texts(task, solvers, prepared, made)
            _environment(task, prepared, made / "environment")
            _tests(task, prepared, made / "tests")
            _solution(solvers, made / "solution")
            if folder.exists():
                folder.rename(Path(place) / "replaced")
            made.rename(folder)
    return folder


def _is_exported(folder: Path, task: TaskSpec) -> bool:
    """Whether `folder` contains an earlier export of the task: its `task.toml` has a section `[task]` with
    the name that `export` gives this task. The mere presence of a `task.toml` proves nothing, because the
    folders of air's own tasks have such a file, too."""
    file = folder / "task.toml"
    table = read_toml(file).get("task") if file.is_file() else None
    return isinstance(table, dict) and table.get("name") == f"{_ORGANISATION}/{task.id}"


def _environment(task: TaskSpec, prepared: data.PreparedData, folder: Path) -> None:
    _copy(prepared.agent, folder / "workspace")
    if (recipe := _recipe(task)) is not None:
        _copy(recipe, folder / task.image)
    _write(
        folder / "Dockerfile",
        f"FROM {task.image}\n"
        f"COPY --chown={AGENT}:{AGENT} workspace/ {WORKSPACE}/\n"
        f"WORKDIR {WORKSPACE}\n",
    )


def _recipe(task: TaskSpec) -> Path | None:
    """Returns the folder with the Dockerfile of the task's container image. The export copies this folder, so
    that the image can be built without air. Returns None if the image is not one of air's."""
    folder = paths.shipped("images") / task.image.removeprefix("air-")
    return folder if (folder / "Dockerfile").is_file() else None


def _tests(task: TaskSpec, prepared: data.PreparedData, folder: Path) -> None:
    _copy(prepared.grader, folder / "grader")
    for name, source in _VERIFIER.items():
        copy_file(source, folder / name)
    _write(folder / "test.sh", _TEST, mode=0o755)
    _write(folder / "Dockerfile", f"FROM {task.image}\nCOPY . /tests/\nWORKDIR {WORKSPACE}\n")
    settings = {
        "artefacts": task.artefacts,
        "artefact_mb": task.limits.artefact_mb,
        "most_files": MOST_FILES,
        "script": task.grader.script,
        "grade_seconds": task.limits.grade_seconds,
        "seeds": [task.split.grading_seed(number) for number in range(task.grader.repeats)],
        "runs_agent_code": task.trust != "data",
        "metric": task.metric,
        "direction": task.direction,
        "baseline": task.baseline,
        "target": task.target,
        "normalise": task.normalise,
        "optimum": task.optimum,
        "clip": task.phi_clip,
    }
    _write(folder / "settings.json", json.dumps(settings, indent=1) + "\n")


def _solution(solvers: tuple[Solver, ...], folder: Path) -> None:
    """Writes the scripts of the reference solutions into `folder`: the last and therefore best one as
    `solve.sh`, each other one as `NAME.sh`, where NAME is the solution's name."""
    for solver in solvers:
        name = "solve" if solver is solvers[-1] else solver.name
        script = f"#!/bin/bash\ncd {WORKSPACE}\n{solver.script.strip()}\n"
        _write(folder / f"{name}.sh", script, mode=0o755)


def _texts(
    task: TaskSpec, solvers: tuple[Solver, ...], prepared: data.PreparedData, folder: Path
) -> None:
    _write(folder / "task.toml", _toml(task, prepared))
    _write(folder / "instruction.md", _instruction(task))
    _write(folder / "README.md", _readme(task, solvers))


def _instruction(task: TaskSpec) -> str:
    files = ", ".join(task.artefacts)
    several = len(task.artefacts) > 1 or task.artefact.endswith("/")
    verb, they, together = ("are", "They", " together") if several else ("is", "It", "")
    network = "There is no network."
    if task.network:
        hosts = "all public hosts" if "*" in task.network else f"only {', '.join(task.network)}"
        network = f"Of the network, {hosts} can be reached."
    return f"""{task.description.strip()}

Work in `{WORKSPACE}`. {network} You have {task.limits.episode_seconds:g} seconds; then {files} {verb} \
graded, once, on hidden data. {they} may be at most {task.limits.artefact_mb:g} MiB{together}, regular files \
without links. What is missing or cannot be graded counts as the lowest score.
"""


def _readme(task: TaskSpec, solvers: tuple[Solver, ...]) -> str:
    rows = "\n".join(f"| {s.name} | {s.val!r} | {s.test!r} |" for s in solvers)
    base = f"The images are built from `{task.image}`, which must exist first"
    if _recipe(task) is not None:
        base += f":\n\n```sh\ndocker build -t {task.image} environment/{task.image}\n```\n"
    else:
        base += ".\n"
    return f"""# {task.name}

The task `{task.id}` of air as a task of Harbor. {base}
The verifier has an image of its own, with the grader and the hidden data; the agent's image has neither.

`reward` is the normalised score φ on the validation split: 0 at {task.baseline!r} and 1 at \
{task.target!r} ({task.metric}, {task.direction} is better), from {task.phi_clip[0]:g} to \
{task.phi_clip[1]:g}. `test_reward` is φ on the test split; `val_{task.metric}` and `test_{task.metric}` \
are the metrics themselves.

Recorded {task.metric} of the reference solutions; `solution/solve.sh` is the last one:

| solution | validation | test |
|---|---|---|
{rows}

This folder has copies of the task's data. Before you publish it, read their licence:

{_about(task)}
"""


def _about(task: TaskSpec) -> str:
    """Returns the text of the task's own README for inclusion in the README of the exported folder: its
    headings are one level deeper. Returns a sentence instead if the task has no README."""
    file = task.folder / "README.md"
    if not file.is_file():
        return "The task has no README.md that names it."
    return re.sub("^#", "##", file.read_text(encoding="utf-8").strip(), flags=re.MULTILINE)


def _toml(task: TaskSpec, prepared: data.PreparedData) -> str:
    limits = task.limits
    gradings = 2 * task.grader.repeats * _ATTEMPTS
    network = _network(task)
    resources = {
        "build_timeout_sec": _BUILD_SECONDS,
        "os": "linux",
        "workdir": WORKSPACE,
        "cpus": limits.cpus,
        "memory_mb": limits.memory_mb,
        "storage_mb": limits.disk_mb + _IMAGE_MB,
        "gpus": 0,
        "mcp_servers": [],
        "env": {},
    }
    tables: dict[str, Mapping[str, Any]] = {
        "": {
            "schema_version": SCHEMA_VERSION,
            "artifacts": [f"{WORKSPACE}/{PurePosixPath(name)}" for name in task.artefacts],
        },
        "task": {
            "name": f"{_ORGANISATION}/{task.id}",
            "version": "1.0.0",
            "description": task.name,
            "authors": [{"name": "air"}],
            "keywords": ["machine learning", task.metric],
        },
        "metadata": _metadata(task, prepared),
        "agent": {"timeout_sec": limits.episode_seconds, "user": AGENT, **network},
        "verifier": {
            "timeout_sec": gradings * limits.grade_seconds + _SPARE_SECONDS,
            "user": "root",
            "network_mode": "no-network",
            "environment_mode": "separate",
            "env": {},
        },
        "environment": {**network, **resources},
        "verifier.environment": {"network_mode": "no-network", **resources},
        "solution": {"env": {}},
    }
    return "\n".join(_table(name, values) for name, values in tables.items())


def _network(task: TaskSpec) -> dict[str, Any]:
    if "*" in task.network:
        return {"network_mode": "public"}
    if task.network:
        return {"network_mode": "allowlist", "allowed_hosts": task.network}
    return {"network_mode": "no-network"}


def _metadata(task: TaskSpec, prepared: data.PreparedData) -> dict[str, Any]:
    """Returns the section `[metadata]` of the exported `task.toml`: settings of the task, such as its metric,
    for which Harbor has no key of its own. The key `nothing` is the reward of an agent that does nothing: the
    lowest one. It is left out if the starter files already contain an artefact (the files to grade), because
    the export does not grade them."""
    about: dict[str, Any] = {
        "category": "machine-learning",
        "metric": task.metric,
        "direction": task.direction,
        "baseline": task.baseline,
        "target": task.target,
        "normalise": task.normalise,
        "command_seconds": task.limits.exec_seconds,
        "grade_seconds": task.limits.grade_seconds,
        "processes": task.limits.pids,
        "artefact_mb": task.limits.artefact_mb,
        "grading_runs_agent_code": task.trust != "data",
        "task_hash": task.hash,
    }
    if not all((prepared.agent / name).exists() for name in task.artefacts):
        about["nothing"] = task.phi_clip[0]
    return about


def _table(name: str, values: Mapping[str, Any]) -> str:
    lines = [f"[{name}]"] if name else []
    lines += [f"{key} = {_value(value)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    """Returns `value` as the text that follows `KEY =` in a TOML file. A string is written in JSON's syntax,
    which is also valid in TOML if the character DEL is escaped."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key} = {_value(one)}' for key, one in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value)


def _copy(source: Path, target: Path) -> None:
    for file in walk(source):
        copy_file(file, target / file.relative_to(source))


def _write(file: Path, text: str, *, mode: int = 0o644) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    file.chmod(mode)
