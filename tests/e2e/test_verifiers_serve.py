"""verifiers' env server over our plugin: worker processes share the host's places and GPUs."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import verifiers.v1 as vf
from verifiers.v1.serve import EnvClient, env_config_data

from air import paths, tasks
from air.env import breaker
from air.sandbox import claims, locks
from air.sandbox.gpus import INVENTORY_ENV
from air.testing import ScriptedServer, replies
from air.trajectories import read
from tests.e2e.conftest import research

PLACES = 3
TIMED = "Wait.\n```bash\necho $CUDA_VISIBLE_DEVICES/ $(date +%s.%N); sleep 0.4; date +%s.%N\nsubmit\n```"
SERVE = """
import json, sys
from verifiers.v1.serve import serve_env
serve_env(max_workers=2, elastic=False, address=sys.argv[1], config_data=json.loads(sys.argv[2]))
"""


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host of the test's own: two GPUs, places for a few boxes, one folder of locks."""
    monkeypatch.setenv(locks.FOLDER_ENV, str(tmp_path / "locks"))
    monkeypatch.setenv(INVENTORY_ENV, "0=GPU-serve-a,1=GPU-serve-b")
    monkeypatch.setenv(claims.LIMIT_ENV, str(PLACES))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


@asynccontextmanager
async def served(config: vf.EnvConfig, folder: Path) -> AsyncIterator[EnvClient]:
    """A client of an env server of this config, with a static pool of two worker processes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    told = json.dumps(env_config_data(config))
    argv = [sys.executable, "-c", SERVE, address, told]
    with (folder / "server.log").open("ab") as log:
        server = await asyncio.create_subprocess_exec(*argv, stderr=log)
    client = EnvClient(address)
    try:
        await client.wait_for_server_startup(timeout=120)
        yield client
    finally:
        await client.close()
        server.terminate()
        await asyncio.wait_for(server.wait(), 60)


async def play(client: EnvClient, config: vf.EnvConfig, url: str, times: int) -> list[Any]:
    """Every task of the config so many times, all at once."""
    endpoint = vf.EvalClientConfig(base_url=url, api_key_var="AIR_TEST_KEY")
    plays = [
        client.run(
            client=endpoint,
            model="scripted",
            sampling=vf.SamplingConfig(),
            task_data=task.data.model_dump(mode="json"),
        )
        for task in vf.load_taskset(config.taskset)
        for _ in range(times)
    ]
    return await asyncio.gather(*plays)


async def test_workers_of_two_sources_never_share_a_gpu_nor_exceed_the_places(host: Path) -> None:
    root = host / "tasks"
    shutil.copytree(tasks.load("titanic").folder, root / "titanic")
    toml = root / "titanic" / "task.toml"
    toml.write_text(f"gpus = 1\n{toml.read_text()}")
    configs = []
    for name in ("a", "b"):
        made = research(
            ["titanic", "prisonersDilemma"],
            "subprocess",
            max_turns=1,
            gpus=["0", "1"],
            record_dir=host / f"records-{name}",
        )
        taskset = made.taskset.model_copy(update={"task_roots": [root, paths.shipped("tasks")]})
        configs.append(made.model_copy(update={"taskset": taskset}))
    with ScriptedServer(replies(TIMED)) as model:
        async with served(configs[0], host) as one, served(configs[1], host) as two:
            played = await asyncio.gather(
                play(one, configs[0], model.url, 4), play(two, configs[1], model.url, 4)
            )
    for source, episodes in zip(("a", "b"), played, strict=True):
        check_episodes(episodes)
        workers = {line["worker"] for line in starts(host / f"records-{source}")}
        assert len(workers) == 2
    spans = [span for source in "ab" for span in used(host / f"records-{source}")]
    assert len(spans) == 16
    for gpu in ("GPU-serve-a", "GPU-serve-b"):
        own = sorted((start, end) for name, start, end in spans if name == gpu)
        assert own
        assert all(before[1] <= after[0] for before, after in pairwise(own))
    assert sum(name == "" for name, _, _ in spans) == 8
    assert 1 < most_at_once(spans) <= PLACES


def check_episodes(episodes: Sequence[Any]) -> None:
    """What came over the wire carries rewards and metrics by name."""
    assert len(episodes) == 8
    for episode in episodes:
        (trace,) = episode.traces
        assert episode.ok, episode.errors or trace.errors
        assert {"delta", "format", "failed_validates", "time", "test_score"} <= set(trace.rewards)
        assert trace.reward == pytest.approx(sum(trace.info["air"]["deltas"]))
        assert trace.metrics["validates"] == 1
        assert trace.metrics["infrastructure_errors"] == 0


def starts(folder: Path) -> list[dict[str, Any]]:
    return [next(iter(read(path))) for path in folder.glob("*.jsonl")]


def used(folder: Path) -> list[tuple[str, float, float]]:
    """Of every episode: its GPU, or nothing, and when its command began and ended in the box."""
    spans = []
    for path in folder.glob("*.jsonl"):
        (step,) = (line for line in read(path) if line["type"] == "step")
        found = re.match(r"(\S*)/ ([\d.]+)\n([\d.]+)", step["observation"])
        assert found, step["observation"]
        spans.append((found[1], float(found[2]), float(found[3])))
    return spans


def most_at_once(spans: Sequence[tuple[str, float, float]]) -> int:
    moments = sorted([(start, 1) for _, start, _ in spans] + [(end, -1) for _, _, end in spans])
    now = most = 0
    for _, change in moments:
        now += change
        most = max(most, now)
    return most


async def test_workers_count_failures_together_and_the_launcher_is_told(
    host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = host / "tasks"
    shutil.copytree(tasks.load("titanic").folder, root / "titanic")
    (root / "titanic" / "grader" / "grade.py").write_text("raise SystemExit(7)\n")
    made = research(["titanic"], "subprocess", max_turns=1, max_failures=3)
    config = made.model_copy(
        update={"taskset": made.taskset.model_copy(update={"task_roots": [root]})}
    )
    file = host / "breaker.json"
    for name, value in breaker.fresh(file).items():
        monkeypatch.setenv(name, value)
    script = replies("Go.\n```bash\npython3 solve.py\nsubmit\n```")
    with ScriptedServer(script) as model:
        async with served(config, host) as client:
            failed = await play(client, config, model.url, 4)
            reason = breaker.opened(file)
            (refused,) = await play(client, config, model.url, 1)
    assert not any(episode.ok for episode in failed)
    assert re.match(r"3 episodes in a row failed .* exit 7", reason)
    assert not refused.ok
    assert not refused.traces
    assert reason in refused.errors[-1].message
    assert os.environ[breaker.FILE_ENV] == str(file)
