"""A folder like a checkout of prime-rl, whose programs run on a machine without a GPU.

The launcher, the orchestrator and the env servers are prime-rl's own. `cpu_trainer` says what differs in the
trainer. In the place of the inference server is `python -m tests.prime_rl.programs @ FILE`: a stock vLLM on
the CPU and, before it, at the port of the configuration, the proxy with prime-rl's way to load weights.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
from pathlib import Path

from tests.prime_rl.chain import vllm
from tests.prime_rl.proxy import AdminProxy

STAND_INS = "stand_ins"
"""The last part of a path that only the orchestrator and the launcher may search: its modules take the place
of some of the trainer's."""
LOGS = "TEST_PRIME_RL_LOGS"
"""The environment variable with the folder for vLLM's log."""
PROGRAMS = {
    "python": "",
    "inference": "-m tests.prime_rl.programs",
    "orchestrator": "-m tests.prime_rl.orchestrator",
    "env-server": "-m prime_rl.entrypoints.env_server",
}
TORCHRUN = """
import runpy, sys
sys.argv[sys.argv.index("prime_rl.trainer.rl.train")] = "tests.prime_rl.cpu_trainer"
runpy.run_module("torch.distributed.run", run_name="__main__", alter_sys=True)
"""


def make(folder: Path) -> dict[str, str]:
    """Makes the folder. Returns the environment variables with which air uses it, on a machine that says it
    has two GPUs."""
    programs = folder / ".venv" / "bin"
    programs.mkdir(parents=True)
    python = shlex.quote(sys.executable)
    for name, words in PROGRAMS.items():
        _write(programs / name, f'exec {python} {words} "$@"')
    places = [place for place in sys.path if place and Path(place).name != STAND_INS]
    own = shlex.quote(os.pathsep.join(places))
    _write(
        programs / "torchrun",
        f'PYTHONPATH={own} exec {python} -c {shlex.quote(TORCHRUN)} "$@"',
    )
    logs = folder / "logs"
    return {
        "AIR_PRIME_RL": str(folder),
        "AIR_GPU_INVENTORY": "0=GPU-0,1=GPU-1",
        LOGS: str(logs),
    }


def _write(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def main() -> None:
    """Serves a model until SIGTERM, which ends the server and the proxy."""
    from prime_rl.configs.inference import InferenceConfig
    from prime_rl.utils.config import cli

    config = cli(InferenceConfig)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    model, length = Path(config.vllm.model), config.vllm.max_model_len
    with (
        vllm(model, Path(os.environ[LOGS]), max_model_len=length) as served,
        AdminProxy(served.url, port=config.server.port),
    ):
        threading.Event().wait()


if __name__ == "__main__":
    main()
