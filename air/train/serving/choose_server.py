"""Chooses the inference server of a run: vLLM, or air's own server, which uses transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import torch

from air.errors import ConfigError, MissingError, UsageError
from air.sandbox.pool import gpus
from air.train.config.run_config import EmbeddedConfig, Inference
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
        """The root address (URL) of the server."""

    @property
    def name(self) -> str:
        """The model's name in requests. It may change when the weights change."""

    def start(self) -> None:
        """Starts the server, and returns when it answers requests."""

    def stop(self) -> None:
        """Ends the server and its processes."""

    def ready(self) -> None:
        """Returns when the server answers requests; during a restart, waits until it does.
        Raises InferenceError if the server has ended and will not be restarted."""

    def exclusive(self) -> AbstractContextManager[None]:
        """Context manager: in the `with` block the server does not use the weights, so they may change."""

    def step_metrics(self) -> Mapping[str, float]:
        """Returns the metrics of sampling since the last call, by name; empty if the server has none."""

    def update_weights(self) -> int:
        """Makes the server load the policy's present weights, and returns the number of their version.
        Running requests end with the old weights. The first version, at the start, is 0."""

    def version_of(
        self, token_ids: Sequence[int], logprobs: Sequence[float], ended: float
    ) -> int | None:
        """Returns the version of the weights that sampled a reply. The reply is given by its tokens, their
        log-probabilities, and the time `ended` (seconds since 1970) at which the client had received it.
        None: not known."""


@dataclass(frozen=True)
class Choice:
    """The inference server that was chosen for a run, with the reason. If `vllm` is None, it is air's own
    server. If `gpu` is None, vLLM runs on the CPU."""

    vllm: Vllm | None
    gpu: gpus.Gpu | None
    reason: str

    @property
    def name(self) -> Literal["vllm", "transformers"]:
        """The chosen server's name, as in `embedded.inference`; `transformers` is air's own server."""
        return "transformers" if self.vllm is None else "vllm"

    def __str__(self) -> str:
        if self.vllm is None:
            return f"inference: transformers, in this process ({self.reason})"
        device = "the CPU" if self.gpu is None else f"GPU {self.gpu}"
        return f"inference: {self.vllm} on {device} ({self.reason})"


def choose(setting: Inference, names: Sequence[str] = ()) -> Choice:
    """Chooses the inference server of a run, without starting it.

    `auto` is vLLM if it is installed and can use a GPU, otherwise air's own server. vLLM gets the first GPU
    of `names`, or the first visible GPU. Raises MissingError if `setting` is `vllm` and vLLM is not
    installed, or if `AIR_VLLM_PYTHON` is wrong. Raises UsageError if `setting` is `vllm` and the installed
    vLLM needs a GPU that this machine lacks. Raises ConfigError if the machine lacks a GPU of `names`.
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
    gpu = _gpu(names)
    if gpu is not None:
        return Choice(
            vllm, gpu, "as asked" if setting == "vllm" else "installed, and a GPU is there"
        )
    if setting == "vllm":
        raise UsageError(
            f"{vllm} needs an NVIDIA GPU and none is to be seen",
            where=str(vllm.python),
            remedy="install the CPU build (`make vllm`), or leave CUDA_VISIBLE_DEVICES one",
        )
    return Choice(None, None, f"{vllm} is installed, but no GPU is to be seen")


def _gpu(names: Sequence[str]) -> gpus.Gpu | None:
    inventory = gpus.inventory()
    if names:
        return gpus.select(names, inventory, where="inference_gpus")[0]
    try:
        return gpus.select("auto", inventory)[0]
    except ConfigError:  # no GPU is visible
        return None


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
    """Returns a new inference server of the chosen kind for `policy`; its method `start` starts it. `name` is
    the model's name in requests. `max_model_len` limits the tokens of a prompt and its reply together.
    `folder` gets vLLM's log and its copy of the weights. `say` gets a one-line message when vLLM is
    restarted. `gpu_share` is the share of the GPU's memory for vLLM if the trainer uses the same GPU."""
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
    )
    return VllmServer(
        policy,
        launch,
        folder=folder,
        port=config.port,
        start_seconds=config.inference_start_seconds,
        say=say,
    )
