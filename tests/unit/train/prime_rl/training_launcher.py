"""Takes the place of prime-rl's launcher: obeys its rules about folders, and writes checkpoints as it does.

The training is real if TRAINS is set: air's embedded engine plays and trains. Otherwise, each step halves the
weights. HANGS=N: after the checkpoint of step N, waits for a signal, with a child in a session of its own, as
torchrun has them. SLOW=FILE: after SIGTERM, ends only when FILE is there.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint.state_dict_saver import save


def trained(settings: dict[str, Any], folder: Path) -> Path:
    """Trains with the embedded engine. Returns the folder of its last checkpoint."""
    from air import train

    settings["orchestrator"].pop("concurrency")  # a key that only prime-rl has
    keys = ("max_steps", "seq_len", "model", "trainer", "orchestrator")
    own = {
        "output_dir": str(folder),
        "run": {"name": "embedded"},
        "embedded": {"threads": 1, "device": "cpu"},
    }
    outcome = train.run(train.load({key: settings[key] for key in keys} | own), quiet=True)
    assert outcome.checkpoint is not None
    with (folder / "metrics.jsonl").open("a") as file:
        for row in outcome.rows:
            file.write(json.dumps({"step": row["step"], "loss/mean": 0.0}) + "\n")  # of the trainer
            orchestrator = {"step": row["step"], "train/agg/all/agent/reward/mean": row["reward"]}
            file.write(json.dumps(orchestrator) + "\n" + json.dumps(orchestrator) + "\n")
    return outcome.checkpoint


def write(folder: Path, step: int, weights: dict[str, torch.Tensor]) -> None:
    place = folder / "checkpoints" / f"step_{step}"
    (place / "orchestrator").mkdir(parents=True, exist_ok=True)
    app = {"model": weights, "progress": {"step": step}}
    save({"app": app}, checkpoint_id=place / "trainer", no_dist=True)
    torch.save({"progress": step}, place / "orchestrator" / "progress.pt")


def end(*_: object) -> None:
    Path(f"{os.environ['CALLED']}.sigterm").touch()
    while (gate := os.environ.get("SLOW")) and not Path(gate).exists():
        time.sleep(0.05)
    sys.exit(1)


def main() -> None:
    words = sys.argv[1:]
    assert os.environ["SPT_NOENV"] == "1"
    settings = json.loads(Path(words[words.index("@") + 1]).read_text())
    folder = Path(settings["output_dir"]) / settings["run"]["name"]
    with Path(os.environ["CALLED"]).open("a") as file:
        file.write(json.dumps({"argv": words, "pid": os.getpid()}) + "\n")
    first = 1
    if "--resume.step" in words:
        first = int(words[words.index("--resume.step") + 1]) + 1
        last, later = (folder / "checkpoints" / f"step_{step}" for step in (first - 1, first))
        assert (last / "orchestrator" / "progress.pt").is_file()
        assert not later.exists()
    elif "--clean" in words:
        shutil.rmtree(folder)
    elif folder.exists() and any(folder.iterdir()):
        sys.exit(f"Run directory '{folder}' already contains artifacts from a previous run.")
    trains = "TRAINS" in os.environ
    start = trained(settings, folder) if trains else settings["model"]["name"]
    weights = load_file(Path(start) / "model.safetensors")
    signal.signal(signal.SIGTERM, end)
    for step in range(1, settings["max_steps"] + 1):
        if not trains:
            weights = {name: tensor / 2 for name, tensor in weights.items()}
        if step >= first:
            write(folder, step, weights)
        if str(step) == os.environ.get("HANGS"):
            child = subprocess.Popen(["sleep", "600"], start_new_session=True)
            Path(os.environ["HANGING"]).write_text(str(child.pid))
            time.sleep(600)
    sys.exit(int(os.environ.get("CODE", "0")))


main()
