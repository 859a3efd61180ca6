"""What no shipped grader may do: execute a text, ask a model or a server, or score an empty artefact."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from air import tasks
from air.errors import ArtefactError
from air.sandbox.pool.box_pool import Pool
from air.tasks.grading import Grader, empty_artefact
from air.tasks.missing_resources import missing
from air.tasks.spec import TaskSpec
from tests import once

STANDARD = {"array", "collections", "json", "math", "pathlib", "random", "re", "sys", "typing"}
"""Modules that read files and compute. None of them connects to a host or starts a program, and what `json`
reads is not executed."""
SHARED = {"grading", "table", "runner"}
"""The modules of `tasks/_shared` that a grader may import beside those that are examined here, too. `runner`
alone runs an agent's code, as another user; see tests/docker/tasks/test_runner_attacks.py."""
EXECUTING = {"eval", "exec", "compile", "__import__"}
"""Built-in functions that execute a text; no import shows them."""
PLAYABLE = [name for name in tasks.available() if not missing(tasks.load(name))]


@pytest.fixture(scope="module", autouse=True)
def _shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Data is prepared once in a test run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIR_CACHE", str(once.cache(tmp_path_factory)))
        yield


@pytest.fixture
def cache() -> None:
    """No cache of its own for each test of this file."""


def sources(task: TaskSpec) -> list[Path]:
    """The files that run as the grader, without the modules `SHARED` and the program `player`."""
    own = sorted((task.folder / "grader").glob("*.py"))
    left_out = SHARED | {"player"}
    return own + [
        path for path in task.shared if path.parent.name != "_shared" or path.stem not in left_out
    ]


def imported(tree: ast.AST) -> set[str]:
    """The top-level modules that a program imports."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("name", tasks.available())
def test_a_grader_executes_no_text_and_asks_nobody(name: str) -> None:
    files = [path for path in sources(tasks.load(name)) if path.suffix == ".py"]
    allowed = STANDARD | SHARED | {"__future__"} | {path.stem for path in files}
    for path in files:
        tree = ast.parse(path.read_text())
        assert imported(tree) <= allowed, path
        words = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert not EXECUTING & words, path


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAYABLE)
async def test_an_empty_artefact_has_no_score(name: str, tmp_path: Path) -> None:
    """It is refused with a message for the agent, so it counts as the lowest score."""
    task = tasks.load(name)
    async with Pool(1) as pool:
        grader = Grader(pool, "process", tmp_path)
        with pytest.raises(ArtefactError) as caught:
            await grader.grade(task, empty_artefact(task), split="val")
    assert not caught.value.fault
