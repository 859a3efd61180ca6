"""Episodes whose container engine goes away: they are masked and counted, and the next episode plays well."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from air import tasks
from air.env.failure_breaker import FILE_ENV, fresh
from air.testing import Message, Script, replies
from tests.docker.private_engine.engine import Engine
from tests.e2e.conftest import attempt, cache, played_by, research
from tests.e2e.episodes.test_episode import copied_task
from tests.e2e.episodes.test_failures import check_masked, in_turn
from tests.until import until

__all__ = ["cache"]
pytestmark = [
    pytest.mark.docker,
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.usefixtures("sockets"),
]
LIMIT = 5
"""The number of consecutive failures that stop a run; no test has so many."""
WELL = attempt(2, 2, "submit")
WAITS = """import pathlib, sys, time
artefact = pathlib.Path(sys.argv[sys.argv.index("--artefact") + 1], "submission.csv")
if "the end" in artefact.read_text(): time.sleep(600)
"""
SUBMITS_THE_END = 'Wait.\n```bash\necho "the end" > submission.csv\nsubmit\n```'


@pytest.fixture
def sockets(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Collects the sockets that Docker's SDK leaves open if it cannot connect, held by logged errors."""
    yield
    caplog.get_records("call").clear()
    gc.collect()


@pytest.fixture
def breaker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which the failure breaker of the test's episodes counts."""
    file = tmp_path / "breaker.json"
    monkeypatch.setenv(FILE_ENV, fresh(file)[FILE_ENV])
    return file


def ending(engine: Engine, how: Callable[[Engine], None]) -> Script:
    """A model during whose second turn the engine ends. It has validated in its first turn."""
    say = replies(attempt(1, 1), attempt(3, 2, "submit"))

    def script(messages: Sequence[Message]) -> Any:
        if any(message["role"] == "assistant" for message in messages):
            how(engine)
        return say(messages)

    return script


def counted(breaker: Path) -> dict[str, Any]:
    """What the failure breaker has counted."""
    counts: dict[str, Any] = json.loads(breaker.read_text())
    return counts


def check_failed(episode: Any, breaker: Path, failures: int, *, at_actions: float) -> None:
    """The episode has no reward, and the failure breaker has counted so many failures."""
    (trace,) = episode.traces
    assert not episode.ok
    assert not trace.rewards
    assert trace.metrics["infrastructure_errors"] == 1
    assert trace.metrics["lost_boxes"] == 0
    assert trace.metrics["artefact_faults"] == 0
    assert "the container engine" in trace.last_error.message
    counts = counted(breaker)
    assert counts["failures"] == failures
    assert counts["at_actions"].get("titanic", 0) == at_actions
    assert not counts["opened"]


def check_well(episode: Any, breaker: Path) -> None:
    """The episode has a reward, and no failure is counted any more."""
    assert episode.ok, episode.errors or episode.traces[0].errors
    assert episode.traces[0].reward > tasks.load("titanic").phi_clip[0]
    assert counted(breaker)["failures"] == 0


@pytest.mark.parametrize("how", [Engine.stop, Engine.kill], ids=["stopped", "killed"])
async def test_an_episode_whose_engine_ends_is_masked_and_the_next_one_is_not(
    engine: Engine, how: Callable[[Engine], None], breaker: Path, tmp_path: Path
) -> None:
    records = tmp_path / "records"
    config = research(["titanic"], "docker", record_dir=records, max_failures=LIMIT)
    async with played_by(in_turn(ending(engine, how), replies(WELL)), config) as play:
        failed = await play()
        check_failed(failed, breaker, 1, at_actions=1)
        check_masked(records, 1)
        assert failed.traces[0].metrics["scored_validates"] == 1  # what it had earned is not paid
        await asyncio.to_thread(engine.start)
        check_well(await play(), breaker)
    check_masked(records, 1)
    await until(lambda: not engine.containers() and not engine.programs(), every=0.1)


def grades(engine: Engine) -> bool:
    """Whether a grader runs in a box of the engine."""
    return any("--artefact" in command(pid) for pid in engine.processes())


def command(pid: int) -> str:
    """The command line of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


async def test_an_episode_whose_engine_ends_during_a_grade_is_masked(
    engine: Engine, breaker: Path, tmp_path: Path
) -> None:
    """Though the grader, as it seems, died of the artefact."""
    root = copied_task(tmp_path, "exec_seconds = 60.0\ngrade_seconds = 600.0")
    grader = root / "titanic" / "grader" / "grade.py"
    grader.write_text(
        WAITS + grader.read_text().replace("from __future__ import annotations\n", "")
    )
    records = tmp_path / "records"
    config = research(
        ["titanic"], "docker", task_roots=[root], record_dir=records, max_failures=LIMIT
    )
    script = in_turn(replies(SUBMITS_THE_END), replies(WELL))
    async with played_by(script, config) as play:
        playing = asyncio.create_task(play())
        await until(lambda: playing.done() or grades(engine))
        assert not playing.done()
        await asyncio.to_thread(engine.kill)
        check_failed(await playing, breaker, 1, at_actions=1)
        check_masked(records, 1)
        await asyncio.to_thread(engine.start)
        check_well(await play(), breaker)
    await until(lambda: not engine.containers() and not engine.programs(), every=0.1)


@pytest.mark.full
async def test_an_episode_whose_engine_stands_still_is_masked(
    engine: Engine, breaker: Path, tmp_path: Path
) -> None:
    """Its socket still takes connections, so only the limit of five minutes for a request ends the wait."""
    records = tmp_path / "records"
    config = research(["titanic"], "docker", record_dir=records, max_failures=LIMIT)
    script = in_turn(ending(engine, Engine.suspend), replies(WELL))
    async with played_by(script, config) as play:
        try:
            failed = await play()
        finally:
            await asyncio.to_thread(engine.resume)
        check_failed(failed, breaker, 1, at_actions=1)
        check_masked(records, 1)
        check_well(await play(), breaker)
    await until(lambda: not engine.containers() and not engine.programs(), every=0.1)


@pytest.mark.full
async def test_an_episode_that_begins_without_an_engine_is_masked(
    engine: Engine, breaker: Path, tmp_path: Path
) -> None:
    """It waits a minute for an engine that may be restarting."""
    config = research(["titanic"], "docker", record_dir=tmp_path / "records", max_failures=LIMIT)
    async with played_by(replies(WELL), config) as play:
        await asyncio.to_thread(engine.stop)
        failed = await play()
        assert not failed.ok
        assert not any(trace.rewards for trace in failed.traces)
        assert "the Docker engine went away" in failed.errors[-1].message
        counts = counted(breaker)
        assert (counts["failures"], counts["at_actions"]) == (1, {})
        assert not list((tmp_path / "records").glob("*.jsonl"))  # it never began
        await asyncio.to_thread(engine.start)
        check_well(await play(), breaker)
    await until(lambda: not engine.containers() and not engine.programs(), every=0.1)
