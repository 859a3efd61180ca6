"""A model that this process loads for an evaluation."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import torch

from air.train.config.embedded_config import ComputeConfig
from air.train.evaluation.local_model import loaded
from air.train.evaluation.settings import Settings, research_env

PROMPTS = ([5] * 7, [6, 7] * 30, [5] * 7 + [8, 9, 10])
SETTINGS = Settings(
    [research_env(["titanic"], runtime="subprocess", max_turns=1)],
    temperature=1.0,
    max_tokens=20,
    context=256,
    compute=ComputeConfig(threads=1, device="cpu"),
)


async def test_replies_of_a_deterministic_evaluation_do_not_depend_on_each_other(
    folder: Path,
) -> None:
    """To the bit; and torch is as it was afterwards."""
    async with loaded(str(folder), replace(SETTINGS, deterministic=True)) as model:
        assert torch.are_deterministic_algorithms_enabled()
        apart = [await reply(model.ctx, number) for number in range(len(PROMPTS))]
        together = await asyncio.gather(*(reply(model.ctx, n) for n in range(len(PROMPTS))))
    assert together == apart
    assert not torch.are_deterministic_algorithms_enabled()


async def reply(ctx: Any, number: int) -> Any:
    """The tokens and log-probabilities of a reply to one of `PROMPTS`."""
    body = {
        "model": ctx.model,
        "token_ids": PROMPTS[number],
        "sampling_params": {"max_tokens": 20, "seed": number},
    }
    address = ctx.client.base_url.removesuffix("/v1") + "/inference/v1/generate"
    async with httpx.AsyncClient(timeout=120) as http:
        done = await http.post(address, json=body)
    assert done.status_code == 200, done.text
    (choice,) = done.json()["choices"]
    return choice
