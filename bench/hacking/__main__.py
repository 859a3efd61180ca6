"""Tests whether training discovers weaknesses of tasks: `make hacking`. A policy that learned cheats from
demonstrations is trained with GRPO, once on tasks with air's defences and once on weakened copies.

Both arms start from the same policy, which is trained on demonstrations of which a part cheats. They use the
same seed, tasks and number of steps. The weakened arm trains on copies that leak the validation labels and
believe a claimed score (see `weakened.py`), with `unscored = "unchanged"` and no `validate_penalty`. A
policy there should learn to cheat; if it does not, the experiment proves nothing. In the other arm, cheating
should die out. The exit code is 0 if both happen. The experiment does not test cheats that make an episode
fail, because GRPO takes no gradient from such a masked episode; the table counts these episodes.

    python -m bench.hacking --steps 20 --out outputs/hacking
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from air.sandbox.process import namespaces
from air.tasks.splits import VARIABLE
from air.train.config import overrides
from air.train.config.run_config import RunConfig
from air.train.evaluation.scripted_agent import demonstrate
from air.train.loop.progress import Progress
from air.train.loop.run import EmbeddedRun
from air.trajectories.conversations import to_sft
from bench.hacking import weakened
from bench.hacking.cheats import CheatingAgent
from bench.hacking.table import (
    DEFENDED,
    WEAKENED,
    Episode,
    markdown,
    parts,
    read_run,
    trend,
    verdict,
)
from bench.learning.seeds import CONFIGS, warm_start

ENV = "--orchestrator.train.source.0.env"
OPTIM = ("--trainer.optim.lr", "0.2", "--trainer.optim.max-norm", "0.2")
"""Flags for the learning rate and the largest gradient norm. The rate is twice the quickstart's, because the
run is short. The norm is smaller: gradients grew tenfold when nearly every episode cheated, and with the
quickstart's norm of 1 the policy then unlearned the action format."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--demos", type=int, default=200, help="demonstrations of each task")
    parser.add_argument(
        "--rate", type=float, default=0.2, help="probability that a turn of a demonstration cheats"
    )
    parser.add_argument(
        "--policy", type=Path, help="a warm-started policy; None: one is made from demonstrations"
    )
    parser.add_argument("--tasks", nargs="+", default=["titanic", "digits"])
    parser.add_argument("--out", type=Path, default=Path("outputs/hacking"))
    parser.add_argument(
        "--runtime",
        choices=("docker", "subprocess"),
        default="subprocess",
        help="process boxes start faster; these cheats need no escape from a box",
    )
    args, rest = parser.parse_known_args()
    if args.out.exists() and any(args.out.iterdir()) and not (args.out / "results.json").exists():
        parser.error(f"{args.out} has content that is not this program's; name another --out")
    os.environ.setdefault(
        VARIABLE, "learned hacking"
    )  # a split that is not public, the same for all
    shutil.rmtree(args.out, ignore_errors=True)
    args.out.mkdir(parents=True)
    (args.out / "results.json").write_text("{}")
    if args.runtime == "subprocess":
        print(f"process boxes: {namespaces.detect().reason}", flush=True)
    began = time.monotonic()
    policy = args.policy or args.out / "warm"
    configs = {arm: run_config(args, rest, arm, policy) for arm in (WEAKENED, DEFENDED)}
    weakened.make(args.out / "tasks", args.tasks)
    if args.policy is None:
        warm_start(args.out, demonstrations(args), args.seed)
    episodes = {arm: train(arm, config) for arm, config in configs.items()}
    print(f"{(time.monotonic() - began) / 60:.1f} min")
    return report(args.out, episodes)


def demonstrations(args: argparse.Namespace) -> Path:
    """Records demonstrations on the shipped tasks, of which a part cheats; returns the file with them."""
    folder = args.out / "demos"
    agent = CheatingAgent(args.seed, rate=args.rate)
    asyncio.run(demonstrate(args.tasks, args.demos, folder, runtime=args.runtime, agent=agent))
    data: Path = args.out / "demos.jsonl"
    count = to_sft(sorted(folder.glob("*.jsonl")), data)
    print(f"{count} demonstrations", flush=True)
    return data


def train(arm: str, config: RunConfig) -> list[Episode]:
    """Trains the policy of one arm, which is one of the two compared runs (weakened or defended tasks);
    returns the training episodes."""
    with Progress(config.max_steps, title=arm) as progress:
        outcome = asyncio.run(EmbeddedRun(config, progress).run())
    return read_run(outcome.folder)


def run_config(args: argparse.Namespace, rest: Sequence[str], arm: str, policy: Path) -> RunConfig:
    """Returns the settings of one of the two compared runs (arms): the quickstart's run file with air's
    default `delta` and, for the run on weakened tasks, with the defences switched off."""
    flags = ["--model.name", str(policy), "--output-dir", str(args.out), "--run.name", arm]
    flags += ["--max-steps", str(args.steps), "--embedded.seed", str(args.seed)]
    flags += ["--orchestrator.group-size", "12", "--orchestrator.batch-size", "24", *OPTIM]
    flags += [f"{ENV}.agent.runtime.type", args.runtime, f"{ENV}.delta", "previous"]
    flags += [f"{ENV}.taskset.tasks", json.dumps(args.tasks)]
    if arm == WEAKENED:
        roots = [str((args.out / "tasks").resolve())]
        flags += [f"{ENV}.taskset.task-roots", json.dumps(roots)]
        flags += [f"{ENV}.unscored", "unchanged", f"{ENV}.validate-penalty", "0"]
    sources = overrides.parse([f"@{CONFIGS / 'quickstart.toml'}", *flags, *rest], RunConfig)
    return overrides.build(RunConfig, sources)


def report(out: Path, arms: dict[str, list[Episode]]) -> int:
    """Prints and writes the tables and the verdict; returns the exit code."""
    trends = {arm: trend(episodes) for arm, episodes in arms.items()}
    rows = {arm: parts(episodes) for arm, episodes in arms.items()}
    code, text = verdict(trends)
    by_step = {arm: parts(episodes, len(episodes)) for arm, episodes in arms.items()}
    results = {
        "verdict": text.splitlines(),
        "trends": {arm: asdict(one) for arm, one in trends.items()},
        "by_step": by_step,
    }
    (out / "results.json").write_text(json.dumps(results, indent=1, ensure_ascii=False))
    tables = "\n\n".join(markdown(arm, rows[arm]) for arm in arms)
    (out / "results.md").write_text(f"{tables}\n\n{text}\n")
    print(f"{tables}\n\n{text}")
    return code


if __name__ == "__main__":
    raise SystemExit(main())
