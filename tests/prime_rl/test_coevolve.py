"""A co-evolution whose models prime-rl trains: its own launcher, orchestrator, env servers and trainer."""

from __future__ import annotations

import asyncio
import json
import re
import tomllib
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from air.train.coevolve import report as coevolution
from air.train.coevolve.coevolve_run import CoevolveRun
from air.train.coevolve.plan import POSED_FILE, Plan, plan
from air.train.config.coevolve_config import CoevolveConfig
from air.train.prime_rl.training import PrimeTraining
from tests.e2e.train.test_coevolve import PROPOSALS, QUESTIONS, coevolve_toml, policies
from tests.prime_rl import programs
from tests.prime_rl.chain import read_traces
from tests.prime_rl.processes import free_ports

pytestmark = pytest.mark.primerl
SIDES = ("proposer", "executor")
LR = 1e-5
"""So small that answers to a question go on to differ: prime-rl gives up after ten batches without spread."""
SECONDS = 3600
"""The time limit of a test, which takes five minutes. Without it, a prime-rl that hangs would say nothing."""


def on_prime_rl(settings: dict[str, Any]) -> dict[str, Any]:
    """A side's settings, for prime-rl on this machine."""
    settings = {key: value for key, value in settings.items() if key != "embedded"}
    orchestrator = {key: x for key, x in settings["orchestrator"].items() if key != "algo"}
    port, env_port = free_ports(2)
    orchestrator |= {
        "concurrency": {"initial_inflight": 4, "max_inflight": 4},
        "env_server_base_port": env_port,
        "model": {"client": {"base_url": f"http://127.0.0.1:{port}/v1"}},
    }
    # What has no meaning, or no implementation, on a CPU.
    model = {
        "impl": "hf",
        "attn": "flash_attention_2",
        "compile": "None",
        "ac_offloading": "None",
        "optim_cpu_offload": False,
    }
    return settings | {
        "orchestrator": orchestrator,
        "trainer": {
            "model": model,
            "optim": {"lr": LR},
            "scheduler": {"min_lr": LR},  # else the first step of a warm-up changes nothing
        },
        "inference": {
            "server": {"port": port},
            "vllm": {"max_model_len": settings["seq_len"]},
            "router": "None",
        },
        "deployment": {"num_infer_gpus": 1, "num_train_gpus": 1},
        "rollout_transport": {"type": "filesystem"},
        "weight_broadcast": {"type": "filesystem"},
        "monitors": {"file": {}},
    }


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Plan]:
    """Begins a co-evolution whose trainings have so many steps, each with a checkpoint."""
    for name, value in programs.make(tmp_path / "prime-rl").items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    policies(tmp_path)

    def begin(steps: int) -> Plan:
        models = {name: tmp_path / name / "warm" for name in SIDES}
        data = tomllib.loads(coevolve_toml(tmp_path, models).read_text())
        for name in SIDES:
            data[name] |= {"compute": {"device": "cpu", "threads": 1}}
            settings = on_prime_rl(data[name]["settings"])
            data[name]["settings"] = settings | {"max_steps": steps, "ckpt": {"interval": 1}}
        planned = plan(CoevolveConfig.model_validate(data))
        assert planned.proposer.engine == planned.executor.engine == "prime-rl"
        planned.check()
        planned.claim()
        return planned

    return begin


async def test_a_round_is_trained_by_prime_rl(
    begun: Callable[[int], Plan], tmp_path: Path, report: Callable[[str], None]
) -> None:
    planned = begun(1)
    async with asyncio.timeout(SECONDS):
        await CoevolveRun(planned, print, lambda _: nullcontext(lambda: None)).run()
    assert planned.is_finished()
    rounds = coevolution.report(planned)["rounds"]
    assert [one["proposals"] for one in rounds] == [PROPOSALS, PROPOSALS]
    folder = tmp_path / "c" / "round1"
    for name in SIDES:
        seen = _trained(folder / name, tmp_path / name / "warm")
        report(f"co-evolution, {name}: {seen}")
    # The evaluation of round 1 was played with the weights that prime-rl trained.
    evaluation = (folder / "held_out" / "evaluation.json").read_text()
    assert str(folder / "executor" / "merged") in evaluation


async def test_a_training_that_is_killed_goes_on_after_its_checkpoint(
    begun: Callable[[int], Plan], tmp_path: Path, report: Callable[[str], None]
) -> None:
    """prime-rl's trainer and orchestrator go on after the last step that both have saved."""
    steps = 8
    planned = begun(steps)
    folder, rows = planned.round_folder(1), tmp_path / "rows.jsonl"
    questions = [{"question": q, "answer": right} for q, (right, _) in QUESTIONS.items()]
    rows.write_text("".join(f"{json.dumps(question)}\n" for question in questions))
    folder.mkdir(parents=True)
    (folder / POSED_FILE).write_text(json.dumps(planned.posed(rows)))
    training = planned.executor_run(1, str(tmp_path / "executor" / "warm"), len(questions))
    assert isinstance(training, PrimeTraining)
    async with asyncio.timeout(SECONDS):
        await _killed_after_the_first_checkpoint(training)
        assert training.result() is None
        said: list[str] = []
        assert await training.run(said.append) == training.folder / "merged"
    (first,) = re.findall(r"--resume\.step (\d+)", said[0])
    log = (training.folder / "logs" / "attempt_2" / "trainer.log").read_text()
    assert f"Resuming training from checkpoint step {first}" in log
    assert [int(step) for step in re.findall(r"Step (\d+) \|", log)] == list(
        range(int(first) + 1, steps + 1)
    )
    report(f"a training that was killed goes on after step {first}, to step {steps}")


async def _killed_after_the_first_checkpoint(training: PrimeTraining) -> None:
    task = asyncio.create_task(training.run(print))
    saved = training.folder / "checkpoints" / "step_1"
    while not (
        (saved / "trainer/.metadata").exists() and (saved / "orchestrator/progress.pt").exists()
    ):
        assert not task.done(), await task
        await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.sleep(0.5)
    task.cancel()  # the second time, prime-rl is killed
    with pytest.raises(asyncio.CancelledError):
        await task


def _trained(folder: Path, before: Path) -> str:
    """Checks the folder of a training of one step that began with the model `before`."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    values = {key: value for row in rows for key, value in row.items()}
    mismatch, norm = values["mismatch_kl/all/mean"], values["optim/grad_norm"]
    assert abs(mismatch) < 1e-3  # the trainer's log-probabilities are those of the sampler
    assert norm > 0
    old, new = (load_file(each / "model.safetensors") for each in (before, folder / "merged"))
    assert old.keys() == new.keys()
    change = max(float((old[key] - new[key]).abs().max()) for key in old)
    assert LR / 2 < change < 2 * LR  # AdamW's first step is as long as the learning rate
    episodes = read_traces(folder, 1, "effective")
    tokens = values["perf/throughput"] * values["time/forward_backward"]
    return (
        f"{len(episodes)} episodes, {tokens:.0f} tokens; mismatch KL {mismatch:.1e}, "
        f"gradient norm {norm:.1e}, largest change of a weight {change:.1e}; step {values['time/step']:.0f} s"
    )
