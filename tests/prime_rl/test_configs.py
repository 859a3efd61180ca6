"""Stage 1: every run file means to prime-rl what it should; its env servers start and serve `air`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from air import tasks
from air.config import read_toml
from air.sandbox.docker import air_images
from air.sandbox.pool import gpus
from air.testing import ScriptedServer, replies
from tests.prime_rl.processes import Failed, free_port, run, started

pytestmark = pytest.mark.primerl
Report = Callable[[str], None]

CONFIGS = Path(__file__).parents[2] / "configs"
GPU_KEYS = ("gpus", "trainer_gpus", "inference_gpus")


def kind(file: Path) -> str:
    """Which of prime-rl's programs reads it; empty: none does."""
    data = read_toml(file)
    if file.parent.name == "embedded" or file.stem.endswith("_embedded"):
        return ""
    for key, name in {"orchestrator": "rl", "data": "sft", "eval": "evals", "serve": "env"}.items():
        if key in data:
            return name
    return ""  # verifiers' own evaluation command reads it


FILES = [file for file in sorted(CONFIGS.rglob("*.toml")) if kind(file)]


def name(file: Path) -> str:
    return str(file.relative_to(CONFIGS))


def is_research(task_id: str) -> bool:
    """Whether this is a research task; other worlds' ids begin with their name and a colon."""
    return ":" not in task_id


@pytest.fixture
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> list[tuple[str, dict[str, Any]]]:
    """What the env servers of a run file read, as `rl --dry-run` or prime-rl's schema gives it."""
    file = request.param
    if kind(file) == "rl":
        args = ("@", file, "--dry-run", "--output-dir", tmp_path / "out")
        shown = run("prime_rl.entrypoints.rl", *args, log=tmp_path / "dry_run.log")
        assert "Dry run complete" in shown
        found = sorted((tmp_path / "out").glob("*/configs/envs/*/*.json"))
        return [(path.stem, json.loads(path.read_text())) for path in found]
    if kind(file) == "sft":
        args = ("@", file, "--dry-run", "--output-dir", tmp_path / "out")
        shown = run("prime_rl.entrypoints.sft", *args, log=tmp_path / "dry_run.log")
        assert "Dry run complete" in shown
        return []
    return list(_validated(file))


def _validated(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    from prime_rl.configs.env_server import EnvServerConfig
    from prime_rl.configs.evals import EvalsConfig

    if kind(file) == "env":
        yield file.stem, EnvServerConfig.model_validate(read_toml(file)).model_dump(mode="json")
        return
    for source in EvalsConfig.model_validate(read_toml(file)).eval.source:
        data = source.model_dump(mode="json")
        yield source.resolved_name, {"env": data["env"], "serve": data["serve"]}


@pytest.mark.parametrize("servers", FILES, indirect=True, ids=name)
async def test_a_run_file(
    servers: list[tuple[str, dict[str, Any]]],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    report: Report,
) -> None:
    """It validates and dry-runs; a scripted agent plays an episode through each of its env servers."""
    file = request.node.callspec.params["servers"]
    played = []
    for source, config in servers:
        if any(
            tasks.load(task).gpus for task in config["env"]["taskset"]["tasks"] if is_research(task)
        ):
            _refused(source, config, tmp_path)
            played.append(f"{source} refused (needs a GPU)")
        else:
            boxes = await _served(source, config, tmp_path)
            played.append(f"{source} played in a {boxes} box")
    report(
        f"stage 1: {name(file)}: valid for {kind(file)}; env servers: {', '.join(played) or 'none'}"
    )


def _refused(source: str, config: dict[str, Any], folder: Path) -> None:
    """Without a GPU, a source that needs one ends at the start, with our line as the last."""
    if gpus.inventory():
        pytest.skip(
            "this machine has GPUs; whether they are those that the file names is not known"
        )
    with pytest.raises(Failed, match=r"ConfigError.*GPU"):
        _run_server(source, config, folder)


def _run_server(source: str, config: dict[str, Any], folder: Path) -> None:
    run(
        "prime_rl.entrypoints.env_server", "@", _written(source, config, folder), log=folder / "log"
    )


def _written(source: str, config: dict[str, Any], folder: Path) -> Path:
    config["serve"]["address"] = f"tcp://127.0.0.1:{free_port()}"
    config["env"]["record_dir"] = str(folder / "trajectories")
    file = folder / f"{source}.json"
    file.write_text(json.dumps(config))
    return file


async def _served(source: str, config: dict[str, Any], folder: Path) -> str:
    """Plays one episode through a source's server; returns the kind of box it was played in."""
    import verifiers.v1 as vf
    from prime_rl.configs.env_server import EnvServerConfig
    from verifiers.v1.serve import EnvClient

    env = config["env"]
    env.update({key: [] for key in GPU_KEYS})  # none of them is here, and these tasks need none
    if air_images.why_not_ready():
        env["agent"]["runtime"] = {"type": "subprocess"}
    file, log = _written(source, config, folder), folder / f"{source}.log"
    settings = EnvServerConfig.model_validate(config)
    task = next(iter(vf.load_taskset(settings.env.taskset)))
    with ExitStack() as stack:
        stack.enter_context(started("prime_rl.entrypoints.env_server", "@", file, log=log))
        model = stack.enter_context(ScriptedServer(replies("Done.\n```bash\nsubmit\n```")))
        client = EnvClient(address=config["serve"]["address"])
        try:
            await client.wait_for_server_startup(timeout=180)
        except TimeoutError:
            raise Failed("the env server did not get ready", log) from None
        episode = await client.run(
            client=vf.EvalClientConfig(base_url=model.url, api_key_var="AIR_TEST_KEY"),
            model="scripted",
            sampling=vf.SamplingConfig(),
            task_data=task.data.model_dump(mode="json"),
        )
        await client.close()
    assert episode.ok, episode.errors
    (trace,) = episode.traces
    assert trace.info["air"]["task"] == task.data.task_id
    if is_research(task.data.task_id):  # whose commands the scripted reply has
        assert trace.metrics["submitted"] == 1
        assert trace.metrics["validates"] == 1
    return str(trace.info["air"]["isolation"])
