"""Chooses the inference server of a run: vLLM, or air's own server, which uses transformers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal, Protocol

import torch

from air.errors import ConfigError, MissingError, UsageError
from air.sandbox.pool import gpus
from air.train.config.run_config import EmbeddedConfig, Inference
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

    def start(self) -> None:
        """Starts the server; blocks until it answers requests."""

    def stop(self) -> None:
        """Ends the server and its processes."""

    def ready(self) -> None:
        """Checks that the server answers requests; during a restart, waits until the server is up again.

        Raises:
            InferenceError: the server has ended and will not be restarted.
        """

    def exclusive(self) -> AbstractContextManager[None]:
        """Context manager: during the `with` block the server does not use the policy's weights."""

    def update_weights(self) -> int:
        """Makes the server use the policy's present weights, waits for that, and returns their version."""


class Choice:
    """The inference server that was chosen for a run.

    Args:
        installed: the vLLM installation to use; None means air's own server.
        gpu: the GPU that vLLM uses; None means the CPU.
        reason: the reason for the choice, in a few words.
    """

    def __init__(self, installed: Vllm | None, gpu: gpus.Gpu | None, reason: str) -> None:
        self.vllm, self.gpu, self.reason = installed, gpu, reason

    @property
    def name(self) -> Literal["vllm", "transformers"]:
        """The chosen server as a value of the setting `embedded.inference`."""
        return "transformers" if self.vllm is None else "vllm"

    def __str__(self) -> str:
        if self.vllm is None:
            return f"inference: transformers, in this process ({self.reason})"
        return f"inference: {self.vllm} on {self._device} ({self.reason})"

    @property
    def _device(self) -> str:
        return "the CPU" if self.gpu is None else f"GPU {self.gpu}"


def choose(setting: Inference, wanted: Sequence[str] = ()) -> Choice:
    """Returns the inference server that a run uses.

    For the setting `auto` this is vLLM if it is installed and can use a GPU, otherwise air's own server.

    Args:
        setting: the value of `embedded.inference`.
        wanted: the GPUs that the run file names for inference; vLLM gets the first of them. If empty,
            vLLM gets the first visible GPU.

    Raises:
        MissingError: the setting is vLLM, which is not installed, or `AIR_VLLM_PYTHON` is wrong.
        UsageError: the setting is vLLM, and the installed build needs a GPU that this machine lacks.
        ConfigError: this machine lacks one of the wanted GPUs.
    """
    if setting == "transformers":
        return Choice(None, None, "as asked")
    found = locate.find()
    if found is None:
        if setting == "vllm":
            raise MissingError(
                "vLLM is not installed",
                where="inference",
                remedy=f"`make vllm` installs it, or {locate.PYTHON_ENV} names an interpreter with it",
            )
        return Choice(None, None, "vLLM is not installed")
    if found.cpu:
        if setting == "vllm":
            return Choice(found, None, "as asked")
        return Choice(None, None, f"{found} is installed; --inference vllm uses it")
    gpu = _gpu(wanted)
    if gpu is not None:
        return Choice(
            found, gpu, "as asked" if setting == "vllm" else "installed, and a GPU is there"
        )
    if setting == "vllm":
        raise UsageError(
            f"{found} needs an NVIDIA GPU and none is to be seen",
            where=str(found.python),
            remedy="install the CPU build (`make vllm`), or leave CUDA_VISIBLE_DEVICES one",
        )
    return Choice(None, None, f"{found} is installed, but no GPU is to be seen")


def _gpu(wanted: Sequence[str]) -> gpus.Gpu | None:
    there = gpus.inventory()
    if wanted:
        return gpus.select(wanted, there, where="inference_gpus")[0]
    try:
        return gpus.select("auto", there)[0]
    except ConfigError:  # no GPU is visible
        return None


def server(
    choice: Choice,
    policy: Policy,
    config: EmbeddedConfig,
    *,
    max_model_len: int,
    folder: Path,
    say: Callable[[str], None],
) -> Server:
    """Returns the chosen inference server for `policy`; the server is not started.

    Args:
        max_model_len: longest prompt and reply together, in tokens.
        folder: the folder for vLLM's log and its copy of the weights.
        say: called with a message of one line when vLLM is restarted.
    """
    if choice.vllm is None:
        return InferenceServer(
            policy, port=config.port, max_model_len=max_model_len, max_batch=config.max_batch
        )
    launch = Launch(
        choice.vllm,
        choice.gpu.uuid if choice.gpu else None,
        policy.name,
        max_model_len,
        config.max_batch,
        torch.get_num_threads(),
    )
    return VllmServer(
        policy,
        launch,
        folder=folder,
        port=config.port,
        start_seconds=config.inference_start_seconds,
        say=say,
    )
