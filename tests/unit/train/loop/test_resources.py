"""Which device the policy gets beside vLLM."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from air.errors import UsageError
from air.sandbox.pool.gpus import Gpu
from air.train import load
from air.train.devices import memory
from air.train.devices.device import Device, cpu_instead
from air.train.further_models.frozen_model import FrozenModel
from air.train.loop.further_models import FurtherModels
from air.train.loop.resources import ResourceOpener
from air.train.model.policy import Policy
from air.train.serving.choose_server import Choice

GPU = Gpu(0, "GPU-a")
PLACE = Device(torch.device("cpu"), "free", GPU)
NOTHING = FurtherModels({}, None, greedy=False, temperature=1.0)


def opener(device: str, overlap: int = 0, gpu_gb: int = 80) -> ResourceOpener:
    settings = {"embedded": {"device": device}, "orchestrator": {"max_off_policy_steps": overlap}}
    config = load("configs/quickstart.toml", settings)
    return ResourceOpener(
        config, frozenset(), None, None, lambda _: None, gpu_bytes=lambda _: gpu_gb * memory.GB
    )


def choice() -> Choice:
    vllm: Any = object()
    return Choice(vllm, GPU, "test")


def test_auto_leaves_a_gpu_that_is_too_small_to_vllm(small: Policy) -> None:
    auto = opener("auto", gpu_gb=1)
    problem = auto._shared_gpu_problem(small, NOTHING, choice(), PLACE)
    assert "vLLM has the only GPU: " in problem
    instead = cpu_instead(PLACE, problem)
    assert (instead.gpu, instead.torch_device.type) == (None, "cpu")
    assert not auto._shared_gpu_problem(small, NOTHING, choice(), instead)
    wanted = opener("cuda", gpu_gb=1)
    assert not wanted._shared_gpu_problem(small, NOTHING, choice(), PLACE)
    with pytest.raises(UsageError, match=r'embedded\.device = "cpu"'):
        wanted._check_memory(small, NOTHING, choice(), PLACE)
    assert not opener("auto")._shared_gpu_problem(small, NOTHING, choice(), PLACE)


def test_overlap_on_one_gpu_names_the_cpu(small: Policy) -> None:
    overlapping = opener("cuda", overlap=1)
    assert overlapping._overlaps_on_shared_gpu(PLACE, choice())
    assert not overlapping._overlaps_on_shared_gpu(replace(PLACE, gpu=Gpu(1, "GPU-b")), choice())
    with pytest.raises(UsageError, match=r'or embedded\.device = "cpu"'):
        overlapping._check_memory(small, NOTHING, choice(), PLACE)


def test_models_beside_the_policy_are_counted(small: Policy, folder: Path) -> None:
    models = replace(NOTHING, scorers={"reference": FrozenModel(small, 64)})
    weights = sum(p.numel() * p.element_size() for p in small.model.parameters())
    assert (models.loaded_bytes(), models.training_bytes()) == (weights, 0)
    assert opener("auto")._memory(small, models, choice()).other_models == weights


@pytest.mark.parametrize("overlap", [0, 1, 3])
def test_a_staleness_above_one_is_said_to_change_nothing(tmp_path: Path, overlap: int) -> None:
    settings = {
        "model": {"name": str(tmp_path / "absent")},
        "embedded": {"device": "cpu", "inference": "transformers", "threads": 1},
        "orchestrator": {"max_off_policy_steps": overlap},
    }
    said: list[str] = []
    config = load("configs/quickstart.toml", settings)
    opening = ResourceOpener(config, frozenset(), None, None, said.append)

    async def start() -> None:
        async with AsyncExitStack() as stack:
            await opening.open(stack)

    with pytest.raises(UsageError, match="absent"):  # the model is loaded after the note
        asyncio.run(start())
    notes = [line for line in said if "max_off_policy_steps" in line]
    assert len(notes) == (overlap > 1)
    if notes:
        assert notes == said[:1]
        assert "max_off_policy_steps = 3 has the same effect as 1" in notes[0]
        assert "\n" not in notes[0]
