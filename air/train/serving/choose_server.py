"""Chooses and creates the inference server of a training run, which samples the replies of the policy (the
trained model): vLLM, or air's own server, which uses transformers."""

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
        """Stops the server, and ends the processes that it started."""

    def ready(self) -> None:
        """Returns at once if the server answers requests; if the server is restarting, waits until it
        answers. Raises InferenceError if the server has ended and will not be restarted."""

    def exclusive(self) -> AbstractContextManager[None]:
        """Context manager: during the `with` block, the server does not use the weights of the policy (the
        trained model), so that the trainer may change them."""

    def step_metrics(self) -> Mapping[str, float]:
        """Returns metrics of the server by name, most of them about the time since the last call. Empty if
        the server has no metrics."""

    def update_weights(self) -> int:
        """Makes the server use the present weights of the policy (the trained model), and returns their
        version number. The weights at the start have version 0, so the first call returns 1. Requests that
        are already running finish with the old weights."""

    def version_of(self, token_ids: Sequence[int], logprobs: Sequence[float]) -> int | None:
        """Returns the version number of the weights with which a reply was sampled, or None if it is not
        known. The reply is recognised by the ids of its tokens and their log-probabilities."""


@dataclass(frozen=True)
class Choice:
    """The inference server that was chosen for a run, and the reason in words (`reason`). If `vllm` is None,
    the server is air's own; otherwise it is this installation of vLLM, which runs on the GPU `gpu` or, if
    `gpu` is None, on the CPU."""

    vllm: Vllm | None
    gpu: gpus.Gpu | None
    reason: str
    lease: GpuLease | None = None
    """The lease of the GPU, the exclusive right to use it. It lasts until the process ends or `release` is
    called. None if there is no GPU."""

    def release(self) -> None:
        """Ends the exclusive right to use the GPU (its lease), so that other processes can use this GPU. Does
        nothing if there is no lease."""
        if self.lease is not None:
            self.lease.release()

    @property
    def name(self) -> Literal["vllm", "transformers"]:
        """The name of the chosen server, as a value of the setting `embedded.inference`: `vllm`, or
        `transformers` for air's own server."""
        return "transformers" if self.vllm is None else "vllm"

    def __str__(self) -> str:
        if self.vllm is None:
            return f"inference: transformers, in this process ({self.reason})"
        device = "the CPU" if self.gpu is None else f"GPU {self.gpu}"
        return f"inference: {self.vllm} on {device} ({self.reason})"


def choose(
    setting: Inference, names: Sequence[str] = (), *, boxes: gpus.GpuSelection = ()
) -> Choice:
    """Chooses the inference server of a run, without starting it. If the server uses a GPU, also leases this
    GPU (takes the exclusive right to use it).

    `setting` is the value of `embedded.inference` in the run file. `auto` selects vLLM if vLLM is installed
    and can use a GPU, otherwise air's own server. `names` are the GPUs that the run file names for inference,
    and `boxes` the GPUs that it names for boxes (agents' sandboxes). vLLM gets the first free GPU of `names`
    or, if `names` is empty, the first free visible GPU that is not for boxes. If `boxes` is `auto` (all
    GPUs), vLLM gets the first free visible GPU except the last one, which remains for boxes.

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
    """Finds a free GPU for vLLM: the first free one of `names` or, if `names` is empty, of the visible GPUs
    that are not for `boxes` (agents' sandboxes; `auto` leaves them the last one). Returns the GPU, its lease
    (the exclusive right to use it) and an empty string; or, if no GPU is free, (None, None, the reason in
    words)."""
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
    """Returns a new inference server of the chosen kind for `policy` (the trained model). The caller must
    start the server with `start`.

    `name` is the model's name in requests. `max_model_len` is the maximum number of tokens of a prompt and
    its reply together. vLLM writes its log and its copy of the weights into `folder`. `say` is called with a
    one-line message if vLLM is restarted. `gpu_share` is the share (0 to 1) of the GPU's memory that vLLM may
    use if the trainer uses the same GPU; None if it does not.
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
    """Returns the data type of the weights in vLLM, as a value of `Launch.dtype`. This is the type of the
    policy's weights. However, if the user chose no type and the policy is on the CPU, returns an empty
    string, so that vLLM may choose: bfloat16 on a GPU."""
    if config.dtype == "auto" and policy.device.type == "cpu":
        return ""
    return str(policy.model.dtype).removeprefix("torch.")
