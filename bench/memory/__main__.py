"""Measures the peak memory of one whole GRPO step of a Qwen3-0.6B model: `make bench-memory`.

    python -m bench.memory --cases lora-bfloat16 --tokens 1024 --episodes 1

The model has random weights. Each case runs in a process of its own: it loads the model, samples a group of
episodes and makes one update, with gradient checkpointing and AdamW. AdamW's states exist from the start, as
in all steps of a run but the first. The peak is the kernel's high-water mark of the process's resident
memory. The exit code is 1 if a case needs more than `--limit` GB, or if the ratio of the estimate that `rl`
prints before a run to the measured peak lies outside `TOLERANCE`.

The episodes of the group have the same prompt, as in every run, followed by tokens of their own, of which the
last ones are sampled. A long prompt makes the step shorter, but not smaller, because the size of a batch of
rows (up to `embedded.micro_batch_tokens`) does not depend on which tokens are in the rows, and each sampled
reply needs the keys and values of its whole episode.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.memory.step import MODELS, Step

ROOT = Path(__file__).parents[2]
CASES = ("full-float32", "lora-float32", "full-bfloat16", "lora-bfloat16")
TOLERANCE = (0.9, 1.3)
"""The allowed range of the estimated memory divided by the measured peak. The lower bound ensures that a run
that `rl` says fits does fit; the upper bound ensures that `rl` does not warn of a run that fits."""


def measure(folder: Path, case: str, step: Step, threads: int) -> dict[str, Any]:
    """Runs a case in a process of its own, and returns the process's measurements."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    arguments = [str(folder), case, json.dumps(step._asdict())]
    ran = subprocess.run(
        [sys.executable, "-m", "bench.memory.step", *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if ran.returncode:
        raise SystemExit(f"{case} failed (exit code {ran.returncode})")
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def problems(found: dict[str, Any], limit_gb: float) -> list[str]:
    """Returns texts that describe the violated limits of a case's memory; an empty list if it violates
    none."""
    peak, estimate = found["peak_gb"], found["estimate_gb"]
    short = []
    if peak >= limit_gb:
        short.append(f"{found['case']}: {peak:.1f} GB, not below {limit_gb:g}")
    low, high = TOLERANCE
    if not low <= estimate / peak <= high:
        short.append(
            f"{found['case']}: the estimate of {estimate:.1f} GB is off, {peak:.1f} measured"
        )
    return short


def report(results: Sequence[dict[str, Any]]) -> None:
    """Prints the results as a Markdown table for `experiments.md`."""
    columns = ["trained", "peak, GB", "sampling", "training", "estimate"]
    columns += ["s: sampling", "training", "trained tokens", "tokens read"]
    print(f"| {' | '.join(columns)} |")
    print(f"|{'---|' * len(columns)}")
    for found in results:
        cells = [
            found["case"],
            *(f"{found[key]:.1f}" for key in ("peak_gb", "sampling_gb", "training_gb")),
            f"{found['estimate_gb']:.1f}",
            *(f"{found[key]:.0f}" for key in ("sampling_s", "training_s")),
            str(found["trained_tokens"]),
            str(found["forward_tokens"]),
        ]
        print(f"| {' | '.join(cells)} |")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=list(MODELS), default="0.6B")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES[:2])
    parser.add_argument("--episodes", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=4096, help="tokens of an episode")
    parser.add_argument("--prompt", type=int, help="tokens that all share (default: 7/8 of them)")
    parser.add_argument("--reply", type=int, default=64, help="sampled tokens of an episode")
    parser.add_argument("--max-batch", type=int, default=4, help="embedded.max_batch")
    parser.add_argument("--prefix-cache-mb", type=int, default=1024, help="a key of [embedded]")
    parser.add_argument("--micro-batch-tokens", type=int, default=8192, help="a key of [embedded]")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--limit", type=float, default=16.0, help="most GB that a case may take")
    parser.add_argument("--json", type=Path, default=Path("outputs/bench-memory.json"))
    return parser.parse_args()


def main() -> int:
    args = parsed()
    step = Step(
        episodes=args.episodes,
        tokens=args.tokens,
        prompt=args.prompt or args.tokens * 7 // 8,
        reply=args.reply,
        max_batch=args.max_batch,
        prefix_cache_mb=args.prefix_cache_mb,
        micro_batch_tokens=args.micro_batch_tokens,
    )
    results = []
    with tempfile.TemporaryDirectory(prefix="air-bench-memory-") as name:
        folder = Path(name) / args.model
        # In a process of its own: what it frees must not count.
        command = [sys.executable, "-m", "bench.memory.step", folder, args.model]
        subprocess.run(command, cwd=ROOT, check=True)
        for case in args.cases:
            results.append(measure(folder, case, step, args.threads))
            found = results[-1]
            print(f"{case}: {found['peak_gb']:.1f} GB; estimate {found['estimate']}", flush=True)
    about = {"date": time.strftime("%Y-%m-%d %H:%M"), "model": args.model, **step._asdict()}
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps({**about, "results": results}, indent=1))
    report(results)
    short = [line for found in results for line in problems(found, args.limit)]
    print("\n".join([*short, f"{args.json} has the settings."]))
    return 1 if short else 0


if __name__ == "__main__":
    raise SystemExit(main())
