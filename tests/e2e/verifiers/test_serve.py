"""verifiers' env server over our plugin: worker processes share the host's places and GPUs."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import verifiers.v1 as vf
from verifiers.v1.serve import EnvClient, env_config_data

from air import tasks
from air.env import failure_breaker
from air.env.config import ResearchEnvConfig
from air.sandbox.pool import file_locks, host_slots
from air.sandbox.pool.gpus import INVENTORY_ENV
from air.testing import ScriptedServer, replies
from air.trajectories import read
from tests.e2e.conftest import research
from tests.fork_server import of_this_run

PLACES = 3
AWAY = "air.testing:unreachable"
"""A world whose server does not answer an action."""
TIMED = "Wait.\n```bash\necho $CUDA_VISIBLE_DEVICES/ $(date +%s.%N); sleep 0.4; date +%s.%N\nsubmit\n```"
SERVE = """
import json, sys
from verifiers.v1.serve import serve_env
address, config, workers = sys.argv[1:]
serve_env(
    max_workers=int(workers), elastic=False, address=address, config_data=json.loads(config)
)
"""


@dataclass(frozen=True)
class Source:
    """One served environment."""

    config: ResearchEnvConfig
    address: str
    records: Path
    workers: int


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A host of these tests' own: two GPUs, places for a few boxes, locks and a breaker."""
    folder = tmp_path_factory.mktemp("host")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(file_locks.FOLDER_ENV, str(folder / "locks"))
        patch.setenv(INVENTORY_ENV, "0=GPU-serve-a,1=GPU-serve-b")
        patch.setenv(host_slots.LIMIT_ENV, str(PLACES))
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        for name, value in failure_breaker.fresh(folder / "breaker.json").items():
            patch.setenv(name, value)
        yield folder


@pytest.fixture(scope="module")
def sources(host: Path) -> Iterator[list[Source]]:
    """Two sources, served by static pools of two worker processes and of one."""
    root = task_root(host)
    servers, made = [], []
    try:
        for name, workers in (("a", 2), ("b", 1)):
            config = research(
                ["gpuTask", "plainTask", AWAY],
                "subprocess",
                max_turns=1,
                gpus=["0", "1"],
                max_failures=3,
                record_dir=host / name,
                task_roots=[root],
            )
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
            settings = json.dumps(env_config_data(config))
            argv = ["python", "-c", SERVE, address, settings, str(workers)]
            spawned = of_this_run().spawn(argv, cwd=host, env=os.environ, streams=[1, 2])
            servers.append(spawned)
            made.append(Source(config, address, host / name, workers))
        yield made
    finally:
        for server in servers:
            server.send_signal(signal.SIGTERM)
        for server in servers:
            server.wait(120)


def task_root(host: Path) -> Path:
    """Two tasks, of which one needs a GPU."""
    root = host / "tasks"
    for name in ("gpuTask", "plainTask"):
        shutil.copytree(tasks.load("titanic").folder, root / name)
        toml = root / name / "task.toml"
        text = toml.read_text().replace('id = "titanic"', f'id = "{name}"')
        toml.write_text(f"gpus = 1\n{text}" if name == "gpuTask" else text)
    return root


@asynccontextmanager
async def clients(sources: Sequence[Source]) -> AsyncIterator[list[EnvClient]]:
    opened = [EnvClient(source.address) for source in sources]
    try:
        for client in opened:
            await client.wait_for_server_startup(timeout=120)
        yield opened
    finally:
        for client in opened:
            await client.close()


async def play(client: EnvClient, source: Source, url: str, names: Sequence[str]) -> list[Any]:
    """An episode of each of these tasks, all at once."""
    endpoint = vf.EvalClientConfig(base_url=url, api_key_var="AIR_TEST_KEY")
    found = {task.data.task_id: task for task in vf.load_taskset(source.config.taskset)}
    plays = [
        client.run(
            client=endpoint,
            model="scripted",
            sampling=vf.SamplingConfig(),
            task_data=found[name].data.model_dump(mode="json"),
        )
        for name in names
    ]
    return await asyncio.gather(*plays)


async def test_workers_of_two_sources_never_share_a_gpu_nor_exceed_the_places(
    sources: list[Source],
) -> None:
    names = ["gpuTask", "plainTask"] * 4
    with ScriptedServer(replies(TIMED)) as model:
        async with clients(sources) as opened:
            plays = zip(opened, sources, strict=True)
            played = await asyncio.gather(*(play(c, s, model.url, names) for c, s in plays))
    for source, episodes in zip(sources, played, strict=True):
        check_episodes(episodes)
        workers = {next(iter(read(path)))["worker"] for path in source.records.glob("*.jsonl")}
        assert len(workers) == source.workers
    spans = [span for source in sources for span in used(source.records)]
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
    host: Path, sources: list[Source]
) -> None:
    with ScriptedServer(replies("a")) as model:
        async with clients(sources) as (one, two):
            plays = [(one, sources[0], [AWAY] * 2), (two, sources[1], [AWAY])]
            failed = await asyncio.gather(*(play(c, s, model.url, names) for c, s, names in plays))
            reason = failure_breaker.opened(host / "breaker.json")
            (refused,) = await play(two, sources[1], model.url, ["plainTask"])
    assert not any(episode.ok for episodes in failed for episode in episodes)
    assert re.match(r"3 episodes in a row failed .* does not answer, at the action", reason)
    assert not refused.ok
    assert not refused.traces
    assert reason in refused.errors[-1].message
