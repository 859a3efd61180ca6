"""The failure breaker counts infrastructure failures, which mask their episodes, and nothing that an agent
can cause."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import verifiers.v1 as vf

from air import tasks
from air.testing import Message, Script, ScriptedServer, replies
from air.trajectories import read
from tests.e2e.conftest import attempt, played_by, research
from tests.e2e.episodes.test_attribution import STAY, end_guest
from tests.e2e.episodes.test_episode import copied_task
from tests.e2e.full_disk_episodes import played_on_a_full_disk

LIMIT = 3
"""The number of consecutive failures that stop a run."""
KILLS_THE_GRADER = 'Bad.\n```bash\necho "the end" > submission.csv\nsubmit\n```'
DIES = """import os, pathlib, sys
artefact = pathlib.Path(sys.argv[sys.argv.index("--artefact") + 1], "submission.csv")
if "the end" in artefact.read_text(): os.kill(os.getpid(), 9)
"""
WELL = attempt(2, 2, "submit")


def ends_its_box(messages: Sequence[Message]) -> str:
    """A model whose box ends after its first turn."""
    if any(message["role"] == "assistant" for message in messages):
        end_guest()
    return STAY


def in_turn(*scripts: Script) -> Script:
    """A model that plays the first episode by the first script, and so on."""
    episodes = -1

    def script(messages: Sequence[Message]) -> Any:
        nonlocal episodes
        episodes += all(message["role"] != "assistant" for message in messages)
        return scripts[episodes](messages)

    return script


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root of tasks with a titanic whose grader dies of the artefact of `KILLS_THE_GRADER`."""
    root = copied_task(tmp_path, "exec_seconds = 9.0")
    grader = root / "titanic" / "grader" / "grade.py"
    grader.write_text(DIES + grader.read_text().replace("from __future__ import annotations\n", ""))
    return root


async def test_episodes_that_agents_break_are_paid_and_stop_no_run(
    root: Path, tmp_path: Path
) -> None:
    kills = replies(KILLS_THE_GRADER)
    broken = [ends_its_box, kills, kills, ends_its_box]
    assert len(broken) > LIMIT
    config = research(
        ["titanic"],
        "subprocess",
        task_roots=[root],
        record_dir=tmp_path / "records",
        max_failures=LIMIT,
    )
    async with played_by(in_turn(*broken, replies(WELL)), config) as play:
        *bad, good = [await play() for _ in range(len(broken) + 1)]
    low = tasks.load("titanic").phi_clip[0]
    for episode in bad:
        assert episode.ok, episode.errors or episode.traces[0].errors
        assert episode.traces[0].reward == pytest.approx(low)
        assert episode.traces[0].metrics["infrastructure_errors"] == 0
    lost = [episode.traces[0].metrics["lost_boxes"] for episode in bad]
    assert lost == [script is ends_its_box for script in broken]
    assert all(episode.traces[0].metrics["artefact_faults"] for episode in bad[1:3])
    assert good.ok, good.errors or good.traces[0].errors
    assert good.traces[0].metrics["scored_validates"] == 1
    assert good.traces[0].reward > low


@pytest.fixture
def closed() -> Iterator[str]:
    """The URL of a model server that is away: nothing listens, and no other program can take the port."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}/v1"


async def test_episodes_without_a_model_server_are_masked_and_stop_the_run(
    closed: str, tmp_path: Path
) -> None:
    config = research(["titanic"], "subprocess", max_failures=LIMIT, record_dir=tmp_path)
    env = vf.load_environment(config)
    with ScriptedServer(replies(WELL)) as server:
        async with env.serving():
            slot = env.slots(next(iter(env.taskset)))[0]
            urls = [closed] * (LIMIT - 1) + [server.url] + [closed] * LIMIT + [server.url]
            episodes = [await env.run_slot(slot, _served_at(url)) for url in urls]
    for episode, url in zip(episodes[:-1], urls, strict=False):
        (trace,) = episode.traces
        assert episode.ok == (url == server.url), trace.errors
        assert trace.metrics["infrastructure_errors"] == (url == closed)
        assert bool(trace.rewards) == (url == server.url)
        if url == closed:
            assert "connection attempts failed" in trace.last_error.message
    refused = episodes[-1]
    assert not refused.ok
    assert refused.traces == []
    assert f"{LIMIT} episodes in a row failed" in refused.errors[-1].message
    check_masked(tmp_path, urls.count(closed))


def _served_at(url: str) -> vf.ModelContext:
    client = vf.EvalClientConfig(base_url=url, api_key_var="AIR_TEST_KEY")
    return vf.ModelContext(model="scripted", client=client)


def check_masked(folder: Path, number: int) -> None:
    """This number of records in the folder are of failed episodes, which have no reward."""
    ends = [list(read(path))[-1] for path in folder.glob("*.jsonl")]
    failed = [end for end in ends if not end["ok"]]
    assert len(failed) == number
    assert all(end["reward"] is None for end in failed)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_episodes_on_a_full_disk_are_masked_and_counted(tmp_path: Path) -> None:
    """Neither the grader's box nor the agent's can start."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    during, full, after = played_on_a_full_disk(folder, tmp_path / "records")
    for number, episode in enumerate((during, full), start=1):
        assert not episode["ok"]
        assert (episode["rewards"], episode["failures"]) == ([], number)
        assert "No space left on device" in " ".join(episode["errors"])
    assert after["ok"], after
    assert (len(after["rewards"]), after["failures"]) == (1, 0)
    check_masked(tmp_path / "records", 1)  # the other one never began
