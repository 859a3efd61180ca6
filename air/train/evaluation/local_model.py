"""Loads a model on this machine and serves it, so that evaluations can sample its replies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import verifiers.v1 as vf

from air.env.config import ResearchEnvConfig
from air.train.devices import device
from air.train.devices.device import Device
from air.train.evaluation.play import served
from air.train.evaluation.settings import Settings
from air.train.loop.rollout import with_defaults
from air.train.model import determinism
from air.train.model.policy import Policy, load


@dataclass(frozen=True)
class SampledModel:
    """A model whose replies evaluations can sample: `ctx`, a `ModelContext` of `verifiers` (the library that
    runs episodes), says how to reach the model and how to sample. The model runs in this process or, if `ctx`
    leads to an endpoint, elsewhere."""

    ctx: vf.ModelContext
    fill_in_settings: Callable[[ResearchEnvConfig], ResearchEnvConfig]
    """A function that returns a copy of an environment's settings in which the settings that depend on this
    model are filled in, such as the GPU on which the model runs and the model's context length."""
    description: str
    """One line for the user: the model's device, the precision of its weights, and its kind of attention."""


@asynccontextmanager
async def loaded(model: str, settings: Settings) -> AsyncIterator[SampledModel]:
    """Async context manager: loads `model`, a folder or a Hugging Face hub id, and runs an inference server
    for it during the `with` block. Yields the model. `settings` has the device, the context length and the
    sampling settings. Raises UsageError if the model or the device cannot be used."""
    compute = settings.compute
    compute.set_threads()
    with (
        determinism.deterministic(settings.deterministic),
        await asyncio.to_thread(device.choose_beside, settings.envs, compute.device) as place,
    ):
        policy = await asyncio.to_thread(
            load,
            model,
            dtype=place.dtype(compute.dtype),
            device=place.torch_device,
            attention=compute.attention,
        )
        context = min(settings.context, policy.max_length)

        def fill_in_settings(env: ResearchEnvConfig) -> ResearchEnvConfig:
            if place.gpu is not None and not env.trainer_gpus:  # so boxes do not get it
                env = env.model_copy(update={"trainer_gpus": [place.gpu.uuid]})
            done: Any = with_defaults(env, policy, max_context_tokens=context)
            return done  # type: ignore[no-any-return]

        async with served(
            policy,
            max_model_len=context,
            renderer=settings.renderer,
            temperature=settings.temperature,
            max_tokens=settings.max_tokens,
            deterministic=settings.deterministic,
        ) as ctx:
            yield SampledModel(ctx, fill_in_settings, _description(place, policy))


def _description(place: Device, policy: Policy) -> str:
    where = "the CPU" if place.gpu is None else f"GPU {place.gpu}"
    dtype = str(policy.model.dtype).removeprefix("torch.")
    attention = policy.model.config.get_text_config()._attn_implementation
    return f"model: on {where} ({place.reason}), {dtype}, {attention} attention"
