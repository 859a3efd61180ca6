"""Whose fault it is that an episode breaks: what the agent can cause is paid, and never masked."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from air import ResearchEnv, tasks
from air.env.program.gateway import Gateway
from air.env.research_episode import ResearchEpisode
from air.sandbox.contract.box import Box
from air.testing import Script, replies
from air.trajectories import Recorder, read
from tests.e2e.conftest import attempt, played_by, research
from tests.e2e.episodes.test_episode import copied_task

MARK = str(31_536_000 + os.getpid())  # of this test process alone
STAY = f"Stay.\n```bash\nsetsid sleep {MARK} >/dev/null 2>&1 &\n```"


def end_guest() -> None:
    """Ends the guest of the box in which `STAY` ran, as no command in it can: from the host, by SIGKILL.
    Waits until the marked process runs and the guest is its parent."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if f"sleep\0{MARK}\0" == (folder / "cmdline").read_text():
                    fields = (folder / "stat").read_text().rpartition(")")[2].split()
                    os.kill(int(fields[1]), signal.SIGKILL)
                    return
            except (FileNotFoundError, ProcessLookupError):
                continue
        time.sleep(0.01)
    raise AssertionError("no box runs the marked process")


def broken_at(turn: int, *texts: str) -> Script:
    """A model that says these replies; before it says the one of this turn, the agent's box ends."""
    say = replies(*texts)

    def script(messages: list[dict[str, Any]]) -> Any:
        if sum(message["role"] == "assistant" for message in messages) == turn - 1:
            end_guest()
        return say(messages)

    return script


def recorded(folder: Path) -> list[Any]:
    (path,) = folder.glob("*.jsonl")
    return list(read(path))


async def test_a_box_that_the_agent_ends_counts_as_the_lowest_score(
    runtime: str, tmp_path: Path
) -> None:
    script = broken_at(3, attempt(2, 2), STAY, attempt(1, 1), "never asked")
    config = research(["titanic"], runtime, record_dir=tmp_path, credit="segment")
    async with played_by(script, config) as play:
        episode = await play()
    assert episode.ok, episode.errors or episode.traces[0].errors
    assert all(trace.info["air"]["why_ended"] == "box" for trace in episode.traces)
    lines = recorded(tmp_path)
    first, last = (line for line in lines if line["type"] == "validate")
    low = tasks.load("titanic").phi_clip[0]
    assert first["delta"] != 0
    assert (last["score"], last["phi"]) == (None, low)
    assert last["delta"] == pytest.approx(low - first["phi"])
    assert lines[-1]["reward"] == pytest.approx(low)
    assert lines[-1]["metrics"]["lost_boxes"] == 1
    assert lines[-1]["metrics"]["infrastructure_errors"] == 0
    assert [line["shown"] for line in lines if line["type"] == "step"][-1].startswith(
        "[the box has"
    )


class PortsOf:
    """A box whose ports are only kept: tests speak to what would answer them."""

    def __init__(self, box: Box) -> None:
        self.path, self.write = box.path, box.write
        self.answers: list[Any] = []

    async def forward(self, port: int, answer: Any) -> int:
        self.answers.append(answer)
        return len(self.answers)


@pytest.mark.parametrize("word", ["validate", "submit"])
async def test_a_box_that_ends_while_a_program_in_it_validates_ended_the_episode(word: str) -> None:
    config = research(["titanic"], "subprocess")
    env = ResearchEnv(config)
    async with env.serving(), env.lease(env.spec("titanic")) as box:
        world = env.world(env.spec("titanic"), box)
        await world.reset(0)
        with Recorder(None, "e") as recorder:
            episode = ResearchEpisode(id="e", world=world, recorder=recorder, config=config)
            ports = PortsOf(box)
            gateway = Gateway(ports, episode)  # type: ignore[arg-type]
            await gateway.open()
            await box.exec(STAY.split("\n")[2], timeout=60)
            await asyncio.to_thread(end_guest)
            request = asyncio.StreamReader()
            request.feed_data(f"{word}\n".encode())
            said: list[bytes] = []
            await ports.answers[1](request, SimpleNamespace(write=said.append))
            assert b"[not scored] [the box has ended]" in said[0]
            result = await gateway.play(asyncio.sleep(600))  # type: ignore[arg-type]
    assert result.exit_code == 0
    assert episode.why_ended == "box"
    assert episode.metrics["lost_boxes"] == 1


async def test_an_artefact_on_which_the_grader_dies_is_at_fault(tmp_path: Path) -> None:
    root = copied_task(tmp_path, "exec_seconds = 9.0")
    grader = root / "titanic" / "grader" / "grade.py"
    dies = (
        "import os, pathlib, sys\nhere = pathlib.Path(sys.argv[sys.argv.index('--artefact') + 1])\n"
    )
    dies += "if (here / 'submission.csv').read_bytes(): os.kill(os.getpid(), 9)\n"
    grader.write_text(dies + grader.read_text().replace("from __future__ import annotations\n", ""))
    config = research(["titanic"], "subprocess", record_dir=tmp_path / "r", task_roots=[root])
    async with played_by(replies(attempt(1, 1, "submit")), config) as play:
        trace = (await play()).traces[0]
    assert trace.ok, trace.errors
    assert trace.reward == tasks.load("titanic").phi_clip[0]
    assert trace.metrics["artefact_faults"] == 1
    (graded,) = (x for x in recorded(tmp_path / "r") if x["type"] == "validate")
    assert "exit 137" in graded["fault"]
    assert not any("137" in str(message.content) for message in trace.messages)


async def test_a_bad_artefact_is_not_worth_deleting(tmp_path: Path) -> None:
    bad = "Bad.\n```bash\npython3 -c \"print('id,survived')\" > submission.csv\nvalidate\n```"
    gone = "Gone.\n```bash\nrm -f submission.csv\nsubmit\n```"
    config = research(["titanic"], "subprocess", record_dir=tmp_path)
    async with played_by(replies(attempt(2, 2), bad, gone), config) as play:
        trace = (await play()).traces[0]
    low = tasks.load("titanic").phi_clip[0]
    assert trace.info["air"]["phis"][1:] == [low, low]
    assert trace.info["air"]["deltas"][2] == 0
    assert trace.reward == pytest.approx(low)
