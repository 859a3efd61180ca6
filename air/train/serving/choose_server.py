"""Chooses the inference server of a run: vLLM, or air's own server, which uses transformers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import torch

from air.errors import ConfigError, MissingError, UsageError
from air.sandbox.pool import gpus
from air.sandbox.pool.gpu_leases import GpuLease, GpuPool, holders
from air.train.config.embedded_config import EmbeddedConfig, Inference
from air.train.model import adapters
from air.train.model.policy import Policy
from air.train.serving.server import InferenceServer
from air.train.serving.vllm import locate
from air.train.serving.vllm.locate import Launch, Vllm
from air.train.serving.vllm.server import VllmServer


class Server(Protocol):
    """Interface of an inference server: air's own (`InferenceServer`) or vLLM (`VllmServer`)."""

    @property
    def url(self) -> str:
        """The root address (URL) of the server, without `/v1`."""

    @property
    def name(self) -> str:
        """The model's name, which requests must state. The name may change when the weights change."""

    def start(self) -> None:
        """Starts the server. Returns when the server answers requests."""

    def stop(self) -> None:
        """Stops the server and ends its processes."""

    def ready(self) -> None:
        """Returns at once if the server answers requests; if the server is restarting, waits until it
        answers. Raises InferenceError if the server has ended and will not be restarted."""

    def exclusive(self) -> AbstractContextManager[None]:
        """Context manager: during the `with` block, the server does not use the policy's weights, so that the
        trainer may change them."""

    def step_metrics(self) -> Mapping[str, float]:
        """Returns the server's metrics since the last call, by name; empty if the server has no metrics."""

    def update_weights(self) -> int:
        """Makes the server use the policy's present weights, and returns their version number: 1 after the
        first call; version 0 is the weights at the start. Requests that are already running finish with the
        old weights."""

    def version_of(
        self, token_ids: Sequence[int], logprobs: Sequence[float], ended: float
    ) -> int | None:
        """Returns the version number of the weights that sampled a reply, or None if not known. The arguments
        identify the reply: its tokens, their log-probabilities, and the time at which the client had received
        the reply (`ended`, in seconds since 1970)."""


@dataclass(frozen=True)
class Choice:
    """The inference server that was chosen for a run. `reason` says in words why this server was chosen. If
    `vllm` is None, air's own server was chosen. If `vllm` is set and `gpu` is None, vLLM runs on the CPU."""

    vllm: Vllm | None
    gpu: gpus.Gpu | None
    reason: str
    lease: GpuLease | None = None
    """The exclusive right to use the GPU. It lasts until the process ends or `release` is called."""

    def release(self) -> None:
        """Releases the lease of the GPU, so that other processes can use this GPU. Does nothing if there is
        no lease."""
        if self.lease is not None:
            self.lease.release()

    @property
    def name(self) -> Literal["vllm", "transformers"]:
        """The chosen server's name as a value of the setting `embedded.inference`. `transformers` means air's
        own server."""
        return "transformers" if self.vllm is None else "vllm"

    def __str__(self) -> str:
        if self.vllm is None:
            return f"inference: transformers, in this process ({self.reason})"
        device = "the CPU" if self.gpu is None else f"GPU {self.gpu}"
        return f"inference: {self.vllm} on {device} ({self.reason})"


def choose(
    setting: Inference, names: Sequence[str] = (), *, boxes: gpus.GpuSelection = ()
) -> Choice:
    """Chooses the inference server of a run, without starting it, and leases its GPU if it has one.

    `setting` is the value of `embedded.inference` in the run file. `auto` selects vLLM if vLLM is installed
    and can use a GPU, otherwise air's own server. `names` are the GPUs that the run file names for inference,
    `boxes` those that boxes may use. vLLM gets the first free GPU of `names` or, if `names` is empty, the
    first free visible GPU that is not for boxes. If boxes may use all GPUs (`auto`), vLLM gets the first free
    visible GPU except the last one, which remains for boxes.

    Raises MissingError if `setting` is `vllm` and vLLM is not installed, or if the environment variable
    `AIR_VLLM_PYTHON` names no interpreter with vLLM. Raises UsageError if `setting` is `vllm` and the
    installed vLLM needs a GPU but none is free. Raises ConfigError if a GPU of `names` does not exist.
    """
    if setting == "transformers":
        return Choice(None, None, "as asked")
    vllm = locate.find()
    if vllm is None:
        if setting == "vllm":
            raise MissingError(
                "vLLM is not installed",
                where="inference",
                remedy=f"`make vllm` installs it, or {locate.PYTHON_ENV} names an interpreter with it",
            )
        return Choice(None, None, "vLLM is not installed")
    if vllm.cpu:
        if setting == "vllm":
            return Choice(vllm, None, "as asked")
        return Choice(None, None, f"{vllm} is installed; --inference vllm uses it")
    gpu, lease, problem = _free_gpu(names, boxes)
    if gpu is not None:
        reason = "as asked" if setting == "vllm" else "installed, and a GPU is there"
        return Choice(vllm, gpu, reason, lease)
    if setting == "vllm":
        raise UsageError(
            f"{vllm} needs an NVIDIA GPU and {problem}",
            where=str(vllm.python),
            remedy="free a GPU, name one in `inference_gpus`, or install the CPU build (`make vllm`)",
        )
    return Choice(None, None, f"{vllm} is installed, but {problem}")


def _free_gpu(
    names: Sequence[str], boxes: gpus.GpuSelection
) -> tuple[gpus.Gpu | None, GpuLease | None, str]:
    """Returns a GPU for vLLM with its lease, or, if there is none, the reason in words. The arguments are
    those of `choose`."""
    inventory = gpus.inventory()
    visible = _visible(inventory)
    problem = "boxes may use every GPU that is visible" if visible else "none is to be seen"
    if names:
        candidates = gpus.select(names, inventory, where="inference_gpus")
    elif boxes == "auto":
        candidates = visible[:-1]
    else:
        of_boxes = gpus.select(boxes, inventory)
        candidates = [gpu for gpu in visible if gpu not in of_boxes]
    for gpu in candidates:
        lease = asyncio.run(GpuPool([gpu]).try_take(1))
        if lease is not None:
            return gpu, lease, ""
        held = ", ".join(map(str, holders(gpu).values())) or "a container"
        problem = f"GPU {gpu} is held by {held}"
    return None, None, problem


def _visible(inventory: Sequence[gpus.Gpu]) -> list[gpus.Gpu]:
    try:
        return gpus.select("auto", inventory)
    except ConfigError:  # no GPU is visible
        return []


def server(
    choice: Choice,
    policy: Policy,
    config: EmbeddedConfig,
    *,
    name: str,
    max_model_len: int,
    folder: Path,
    say: Callable[[str], None],
    gpu_share: float | None = None,
) -> Server:
    """Returns a new inference server of the chosen kind for `policy`. The caller starts the server with
    `start`.

    `name` is the model's name in requests. `max_model_len` is the largest number of tokens of a prompt and
    its reply together. vLLM writes its log and its copy of the weights into `folder`. `say` is called with a
    one-line message if vLLM is restarted. `gpu_share` is the share (0 to 1) of the GPU's memory that vLLM may
    use if the trainer uses the same GPU; None if the trainer does not use vLLM's GPU.
    """
    if choice.vllm is None:
        return InferenceServer(
            policy,
            port=config.port,
            max_model_len=max_model_len,
            max_batch=config.max_batch,
            name=name,
            alone=config.deterministic,
            # The contents of the cache would depend on other requests.
            prefix_cache_mb=0 if config.deterministic else config.prefix_cache_mb,
        )
    launch = Launch(
        choice.vllm,
        choice.gpu.uuid if choice.gpu else None,
        name,
        max_model_len,
        config.max_batch,
        torch.get_num_threads(),
        lora_rank=adapters.rank(policy.model),
        gpu_share=gpu_share,
        dtype=_vllm_dtype(policy, config),
    )
    return VllmServer(
        policy,
        launch,
        folder=folder,
        port=config.port,
        start_seconds=config.inference_start_seconds,
        say=say,
    )


def _vllm_dtype(policy: Policy, config: EmbeddedConfig) -> str:
    """Returns the type of vLLM's weights, as a value of `Launch.dtype`: the policy's type. But if the user
    chose no type and the policy is on the CPU, returns an empty string, so that vLLM uses bfloat16 on a
    GPU."""
    if config.dtype == "auto" and policy.device.type == "cpu":
        return ""
    return str(policy.model.dtype).removeprefix("torch.")
