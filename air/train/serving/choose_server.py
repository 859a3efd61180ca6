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
        """Starts the server, and returns when it answers requests."""

    def stop(self) -> None:
        """Ends the server and its processes."""

    def ready(self) -> None:
        """Checks that the server answers requests; during a restart, waits until the server is up again.

        Raises:
            InferenceError: the server has ended and will not be restarted.
        """

    def exclusive(self) -> AbstractContextManager[None]:
        """Context manager: keeps the server from using the policy's weights during the `with` block.

        So the block can change the weights in place.
        """

    def update_weights(self) -> int:
        """Makes the server use the policy's present weights, and returns the number of their version.

        Returns when the server has the weights.
        """


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
        """The chosen server's name, as in the setting `embedded.inference`.

        It is `transformers` for air's own server.
        """
        return "transformers" if self.vllm is None else "vllm"

    def __str__(self) -> str:
        if self.vllm is None:
            return f"inference: transformers, in this process ({self.reason})"
        return f"inference: {self.vllm} on {self._device} ({self.reason})"

    @property
    def _device(self) -> str:
        return "the CPU" if self.gpu is None else f"GPU {self.gpu}"


def choose(setting: Inference, wanted: Sequence[str] = ()) -> Choice:
    """Returns which inference server a run uses. Does not start the server.

    For the setting `auto` this is vLLM if it is installed and can use a GPU, otherwise air's own server.

    Args:
        setting: the value of `embedded.inference` in the run file (TOML).
        wanted: the GPUs that the run file names for inference. vLLM gets the first of them, or the first
            visible GPU if the run file names none.

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
    """Returns a new inference server of the chosen kind for `policy`. Call its method `start` to start it.

    Args:
        choice: the result of `choose`.
        config: the section `[embedded]` of the run file (TOML).
        max_model_len: the largest number of tokens of a prompt and its reply together.
        folder: the folder for vLLM's log and its copy of the weights.
        say: a function that gets a message of one line when vLLM is restarted.
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
