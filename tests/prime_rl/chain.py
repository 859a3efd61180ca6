"""One run of prime-rl's orchestrator, env servers and a real vLLM on a machine without a GPU.

The run file is the shipped quickstart, changed only where this machine is smaller or the test needs to look
on: `settings` says how. `rl --dry-run` writes what every process reads, as on a machine with GPUs; the
processes are then started one by one, since the launcher itself looks for GPUs first.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from air import paths
from air.config import read_toml
from air.train.serving.vllm.locate import Launch, find
from tests.prime_rl.policy import TASKS
from tests.prime_rl.processes import Failed, ended, free_port, run, started, wait_for_end
from tests.prime_rl.proxy import AdminProxy

CONTEXT = 1024
VLLM_START_SECONDS = 400


@dataclass(frozen=True)
class Served:
    """A running vLLM."""

    url: str
    model: str
    """The name, and the folder, of the policy it started with."""


@contextmanager
def vllm(policy: Path, folder: Path, *, max_model_len: int = CONTEXT) -> Iterator[Served]:
    """A stock vLLM server for `policy`; its log goes to `folder`."""
    installed = find()
    assert installed is not None, "no vLLM: make vllm"
    port, log = free_port(), folder / "vllm.log"
    launch = Launch(
        installed, None, name=str(policy), max_model_len=max_model_len, max_batch=16, threads=1
    )
    url = f"http://127.0.0.1:{port}"
    with ended(launch.command(policy, port), log=log, env=launch.environment()) as process:
        deadline = time.monotonic() + VLLM_START_SECONDS
        while not _healthy(url):
            if process.poll() is not None or time.monotonic() > deadline:
                raise Failed("vLLM did not get ready", log)
            time.sleep(0.5)
        yield Served(url, str(policy))


def _healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", trust_env=False).is_success
    except httpx.TransportError:
        return False


@dataclass(frozen=True)
class Run:
    """What a run left."""

    folder: Path
    """prime-rl's folder of the run."""
    trajectories: Path
    """Ours."""
    loaded: list[str]
    """The folders whose weights vLLM loaded, in order."""


def settings(served: Served, admin: str, folder: Path, **change: Any) -> dict[str, Any]:
    """The quickstart's run file for this machine.

    Args:
        change: `credit`, `max_steps`, `batch_size`.
    """
    data = read_toml(paths.shipped("configs") / "quickstart.toml")
    data |= {"max_steps": change["max_steps"], "seq_len": CONTEXT, "output_dir": str(folder)}
    data |= {"run": {"name": "run"}, "model": {"name": served.model}}
    data |= {"monitors": {"file": {}}, "rollout_transport": {"type": "filesystem"}}
    # Large steps, so that one version's log-probabilities are told from another's.
    data["trainer"] = {"optim": {"type": "adamw", "lr": 1e-3, "weight_decay": 0.0}}
    data["orchestrator"] |= {"batch_size": change["batch_size"], "group_size": 4}
    data["orchestrator"] |= {"env_server_base_port": free_port()}
    data["orchestrator"]["concurrency"] = {"initial_inflight": 8, "max_inflight": 8}
    data["orchestrator"]["model"] = {
        "client": {"base_url": f"{served.url}/v1", "admin_base_url": [admin]}
    }
    env = data["orchestrator"]["train"]["source"][0]["env"]
    env |= {"credit": change["credit"], "record_dir": str(folder / "trajectories")}
    env |= {"max_boxes": 8, "warm_boxes": 0}
    env["taskset"]["tasks"] = list(TASKS)
    env["agent"]["runtime"]["type"] = "subprocess"
    return data


@contextmanager
def prepared(served: Served, folder: Path, **change: Any) -> Iterator[tuple[Run, ExitStack]]:
    """A run whose files are written and whose env servers run; the stack ends what is put on it."""
    import tomli_w

    with AdminProxy(served.url) as proxy, ExitStack() as stack:
        file = folder / "run.toml"
        file.write_text(tomli_w.dumps(settings(served, proxy.url, folder, **change)))
        run("prime_rl.entrypoints.rl", "@", file, "--dry-run", log=folder / "dry_run.log")
        made = Run(folder / "run", folder / "trajectories", proxy.loaded)
        for config in sorted((made.folder / "configs/envs/train").glob("*.json")):
            log = folder / f"env_{config.stem}.log"
            stack.enter_context(started("prime_rl.entrypoints.env_server", "@", config, log=log))
        yield made, stack


def orchestrate(made: Run, beside: Callable[[], None] = lambda: None, seconds: float = 600) -> str:
    """Runs the orchestrator to its end, which must be exit code 0; returns its log."""
    log = made.folder.parent / "orchestrator.log"
    config = made.folder / "configs/orchestrator.json"
    with started("tests.prime_rl.orchestrator", "@", config, log=log) as process:
        wait_for_end(process, "the orchestrator", log, seconds, beside)
    return log.read_text(errors="replace")


def broadcast(made: Run, version: int, policy: Path) -> None:
    """Hands out weights as prime-rl's trainer does: a folder and, when it is whole, `STABLE`."""
    folder = made.folder / f"broadcasts/step_{version}"
    shutil.copytree(policy, folder)
    (folder / "STABLE").touch()


def read_episodes(made: Run, step: int, subset: str) -> list[dict[str, Any]]:
    """The episodes of one step as prime-rl's file monitor wrote them; `all` or `effective`."""
    return read_traces(made.folder, step, subset)


def read_traces(folder: Path, step: int, subset: str) -> list[dict[str, Any]]:
    """As `read_episodes`, for the folder of a run."""
    file = folder / f"rollouts/step_{step}/train/{subset}/traces.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()]
