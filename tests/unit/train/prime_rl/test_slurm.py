"""The SLURM templates: what they become is a sound script, and a job of it ends as its processes do.

SLURM and prime-rl's programs are stood in for by small scripts on the PATH, named as theirs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from air import paths

TEMPLATES = paths.shipped("configs") / "slurm"
OPENED = '{"failures": 5, "opened": "five episodes failed"}'
COUNTING = '{"failures": 4, "opened": ""}'
SRUN = """
cat > "$STANDINS/body.$$"
pids=()
for node in 0 1; do
    SLURM_PROCID=$node setsid bash -s < "$STANDINS/body.$$" & pids+=($!)
done
code=0
for _ in 0 1; do
    wait -n && continue || ended=$?
    [ "$code" -ne 0 ] || code=$ended
    for pid in "${pids[@]}"; do kill -KILL -- "-$pid"; done
done 2> /dev/null
for pid in "${pids[@]}"; do kill -KILL -- "-$pid" 2> /dev/null; done  # SLURM ends what a step leaves running
exit "$code"
"""
STANDINS = {
    "scontrol": 'printf "%s\\n" infer train',
    "srun": SRUN,
    "torchrun": 'say "$@"; sleep 1; exit "${TRAINER_CODE:-0}"',
    "orchestrator": 'say "$@"; echo "${TRIPS:-}" > "$AIR_BREAKER_FILE"; sleep "${LASTS:-0}"',
    "env-server": 'say "$@"; sleep "${SERVER_LASTS:-600}"',
    "inference": 'say "$@"; sleep 600',
    "vllm-router": 'say "$@"; sleep 600',
}


def values(tmp_path: Path, kind: str) -> dict[str, Any]:
    """What prime-rl 0.8's launcher gives to a template of that kind."""
    common = {
        "job_name": "air",
        "project_dir": tmp_path / "prime-rl",
        "partition": "gpu",
        "nodelist": None,
        "exclude": None,
        "account": None,
        "time": "24:00:00",
        "pre_run_command": None,
        "cleanup_grace_period": 0,
        "shared_fs": True,
        "output_dir": tmp_path / "run",
        "gpus_per_node": 2,
    }
    if kind == "one_node":
        return {**common, "config_path": tmp_path / "run/configs/rl.json"}
    return {
        **common,
        "config_dir": tmp_path / "run/configs",
        "run_name": "run",
        "is_disaggregated": False,
        "num_train_nodes": 1,
        "num_infer_nodes": 1,
        "nodes_per_infer_replica": 1,
        "num_infer_replicas": 1,
        "infer_nodes_per_replica": 1,
        "router": {"type": "vllm-router", "policy": "consistent_hash"},
        "router_port": 8000,
        "backend_port": 8100,
        "inference_tp": 1,
        "inference_enable_expert_parallel": False,
        "inference_data_parallel_rpc_port": 13345,
        "dp_per_node": 2,
        "kv_offload": False,
        "kv_offload_mooncake": False,
        "use_nccl_broadcast": True,
        "use_zmq_transport": True,
        "ranks_filter": "0",
        "orchestrator_on_inference": False,
        "trainer_env_vars": {"OMP_NUM_THREADS": "1"},
        "orchestrator_env_vars": {"DOCKER_HOST": "tcp://127.0.0.1:1"},
        "inference_env_vars": {},
        "train_env_names": ["research"],
        "eval_env_names": ["unseen"],
    }


def written(tmp_path: Path, kind: str, **changed: Any) -> Path:
    """The script that prime-rl would submit."""
    loader = FileSystemLoader(TEMPLATES)
    env = Environment(loader=loader, undefined=StrictUndefined, keep_trailing_newline=True)
    script = tmp_path / "run.sbatch"
    template = env.get_template(f"{kind}.sbatch.j2")
    script.write_text(template.render(**values(tmp_path, kind) | changed))
    return script


def start(tmp_path: Path, script: Path, **env: str) -> tuple[subprocess.CompletedProcess[str], str]:
    """Runs a job on two nodes; gives its end and what its programs were called with."""
    standins = tmp_path / "bin"
    standins.mkdir()
    calls = tmp_path / "calls"
    for name, body in STANDINS.items():
        say = f'say() {{ echo "{name} $CUDA_VISIBLE_DEVICES $*" >> "{calls}"; }}\n'
        (standins / name).write_text(f"#!/bin/bash\n{say}{body}\n")
        (standins / name).chmod(0o755)
    activate = tmp_path / "prime-rl/.venv/bin/activate"
    activate.parent.mkdir(parents=True)
    activate.touch()
    (tmp_path / "run/logs").mkdir(parents=True)
    path = f"{standins}{os.pathsep}{os.environ['PATH']}"
    settings = {"PATH": path, "STANDINS": str(standins), "AIR_POLL_SECONDS": "0.1"}
    settings |= {"SLURM_JOB_NODELIST": "n[0-1]", "SLURM_JOB_ID": "7", "CUDA_VISIBLE_DEVICES": "all"}
    done = subprocess.run(
        ["bash", str(script)],
        env={**os.environ, **settings, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done, calls.read_text()


@pytest.mark.parametrize("kind", ["one_node", "multi_node"])
def test_a_template_becomes_a_sound_script_that_syncs_nothing(kind: str, tmp_path: Path) -> None:
    script = written(tmp_path, kind)
    subprocess.run(["bash", "-n", str(script)], check=True)
    text = script.read_text()
    for never in ("uv sync", "uv run", "pkill", "{{", "{%"):
        assert never not in text
    head = text.partition("set -eu")[0].splitlines()
    assert "#SBATCH --partition=gpu" in head
    assert "#SBATCH --time=24:00:00" in head
    assert not any("account" in line for line in head)
    assert all(line.startswith("#") or not line for line in head)
    assert "#SBATCH --account=mine" in written(tmp_path, kind, account="mine").read_text()
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", "--severity=warning", str(script)], check=True)


def test_a_run_that_ends_well_ends_on_every_node(tmp_path: Path) -> None:
    done, calls = start(tmp_path, written(tmp_path, "multi_node"), TRIPS=COUNTING)
    assert (done.returncode, done.stderr) == (0, "")
    lines = calls.splitlines()
    configs = tmp_path / "run/configs"
    assert sum(line.startswith("inference ") for line in lines) == 2
    assert any(line.startswith("inference 1 ") and "--server.port 8101" in line for line in lines)
    assert any("--worker-urls http://infer:8100 http://infer:8101" in line for line in lines)
    assert any(
        line.startswith("torchrun ")
        and "--node-rank=0" in line
        and "--rdzv-endpoint=train:29500" in line
        and line.endswith(f"{configs}/trainer.json --rollout_transport.host train")
        for line in lines
    )
    assert any(f"env-server all @ {configs}/envs/eval/unseen.json" in line for line in lines)
    orchestrator = next(line for line in lines if line.startswith("orchestrator "))
    assert "--model.client.base-url http://infer:8000/v1" in orchestrator
    assert "--model.client.admin-base-url http://infer:8100/v1 http://infer:8101/v1" in orchestrator
    assert "--weight_broadcast.host train --rollout_transport.host train" in orchestrator


@pytest.mark.parametrize(
    ("env", "code", "words"),
    [
        ({"TRAINER_CODE": "7"}, 7, "ended with 7"),
        ({"TRIPS": OPENED, "LASTS": "600"}, 1, "five episodes failed"),
        ({"SERVER_LASTS": "0", "LASTS": "600"}, 1, "ended with 1"),
    ],
)
def test_a_process_that_fails_ends_the_job(
    env: dict[str, str], code: int, words: str, tmp_path: Path
) -> None:
    began = time.monotonic()
    done, _ = start(tmp_path, written(tmp_path, "multi_node"), **env)
    assert done.returncode == code
    assert words in done.stderr
    assert time.monotonic() - began < 300


@pytest.mark.parametrize(
    "changed", [{"is_disaggregated": True}, {"router": {"type": "llm-d", "policy": ""}}]
)
def test_what_the_template_does_not_know_is_said(changed: dict[str, Any], tmp_path: Path) -> None:
    script = written(tmp_path, "multi_node", **changed)
    done = subprocess.run(["bash", str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "knows neither" in done.stderr
