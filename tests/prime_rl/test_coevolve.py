"""A co-evolution whose models prime-rl trains: its own launcher, orchestrator, env servers and trainer."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from air.train.coevolve import report as coevolution
from air.train.coevolve.coevolve_run import CoevolveRun
from air.train.coevolve.plan import plan
from air.train.config.coevolve_config import CoevolveConfig
from tests.e2e.train.test_coevolve import PROPOSALS, coevolve_toml, policies
from tests.prime_rl import programs
from tests.prime_rl.processes import free_port

pytestmark = pytest.mark.primerl
SIDES = ("proposer", "executor")


def on_prime_rl(settings: dict[str, Any]) -> dict[str, Any]:
    """A side's settings, for prime-rl on this machine."""
    settings = {key: value for key, value in settings.items() if key != "embedded"}
    orchestrator = {key: x for key, x in settings["orchestrator"].items() if key != "algo"}
    port = free_port()
    orchestrator |= {
        "concurrency": {"initial_inflight": 4, "max_inflight": 4},
        "env_server_base_port": free_port(),
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
        "trainer": {"model": model},
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


async def test_a_round_is_trained_by_prime_rl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, report: Callable[[str], None]
) -> None:
    for name, value in programs.make(tmp_path / "prime-rl").items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    policies(tmp_path)
    models = {name: tmp_path / name / "warm" for name in SIDES}
    data = tomllib.loads(coevolve_toml(tmp_path, models).read_text())
    for name in SIDES:
        data[name] |= {"compute": {"device": "cpu", "threads": 1}}
        data[name]["settings"] = on_prime_rl(data[name]["settings"])
    planned = plan(CoevolveConfig.model_validate(data))
    assert planned.proposer.engine == planned.executor.engine == "prime-rl"
    planned.check()
    planned.claim()
    await CoevolveRun(planned, print, lambda _: nullcontext(lambda: None)).run()
    assert planned.is_finished()
    rounds = coevolution.report(planned)["rounds"]
    assert [one["proposals"] for one in rounds] == [PROPOSALS, PROPOSALS]
    folder = tmp_path / "c" / "round1"
    for name in SIDES:
        seen = _trained(folder / name, models[name])
        report(f"co-evolution, {name}: {seen}")
    # The evaluation of round 1 was played with the weights that prime-rl trained.
    evaluation = (folder / "held_out" / "evaluation.json").read_text()
    assert str(folder / "executor" / "merged") in evaluation


def _trained(folder: Path, before: Path) -> str:
    """Checks the folder of a training of one step that began with the model `before`."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    values = {key: value for row in rows for key, value in row.items()}
    mismatch, norm = values["mismatch_kl/all/mean"], values["optim/grad_norm"]
    assert abs(mismatch) < 1e-3  # the trainer's log-probabilities are those of the sampler
    assert norm > 0
    old, new = (load_file(each / "model.safetensors") for each in (before, folder / "merged"))
    assert old.keys() == new.keys()
    assert any(not torch.equal(old[key], new[key]) for key in old)
    episodes = [json.loads(line) for line in _episodes(folder).read_text().splitlines()]
    tokens = values["perf/throughput"] * values["time/forward_backward"]
    return (
        f"{len(episodes)} episodes, {tokens:.0f} tokens; mismatch KL {mismatch:.1e}, "
        f"gradient norm {norm:.1e}; step {values['time/step']:.0f} s"
    )


def _episodes(folder: Path) -> Path:
    return folder / "rollouts" / "step_1" / "train" / "effective" / "traces.jsonl"
