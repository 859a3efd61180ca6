"""Tests whether a policy of about one million weights learns a family of Harbor tasks: `make learning
ARGS=--harbor`.

The tasks (see `bench/harbor/family.py`) are written as folders; a part of them is held out. Every training
task is first played with its reference solution, which must earn 1. These episodes give the prompts of the
demonstrations; in half of the demonstrations, a part of the command is random. For each seed, `sft` trains a
new policy on the demonstrations (the warm start). Then GRPO trains it further (`configs/harbor/small.toml`),
and separately a control whose rewards are shuffled within each group. Before and after, the policy plays the
held-out tasks. Every episode has a box, and so does the grading of every artefact that was not graded before.

Results are written after each part. The same command continues an interrupted program; for other settings,
give another `--out`.

The exit code is 0 if the mean gain of the reward on held-out tasks exceeds two standard errors over the
seeds, and so does its difference to the control's gain.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import verifiers.v1 as vf

from air.actions import Action, get
from air.cli.runs import sft
from air.env.config import ResearchEnvConfig
from air.paths import write_whole
from air.testing import ScriptedServer
from air.train.config import overrides
from air.train.config.run_config import RunConfig
from air.train.config.sft_config import SFTRunConfig
from air.train.evaluation.play import evaluate, served
from air.train.loop import metrics
from air.train.loop.progress import Progress
from air.train.loop.rollout import Rollout, with_defaults
from air.train.loop.run import EmbeddedRun
from air.train.model import policy as policies
from air.train.model.demonstrations import read_examples
from air.trajectories.conversations import to_sft
from bench.harbor import family as harbor_family
from bench.harbor.family import FamilyTask
from bench.learning.worlds import CONFIGS, GENTLY, ONE_THREAD, report, verdict

NAME = "harbor"
MEASURES = ("reward", "well_formed", *harbor_family.KINDS)
GOOD = 0.5
"""The share of the demonstrations whose command is the right one. In the others, one part of the command is
random, so that they are right only by chance."""
DEMOS, SFT_STEPS = 4000, 1000
THOUGHT = "Done by one command."
TASKS = tuple(harbor_family.every_task())
Talk = list[dict[str, Any]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--harbor", action="store_true", help="this program, and not learning.py")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--plays", type=int, default=6, help="of each held-out task, each time")
    parser.add_argument("--out", type=Path, default=Path("outputs/learning-harbor"))
    parser.add_argument("--only-real", action="store_true", help="leave the control out")
    args, rest = parser.parse_known_args()
    args.out = args.out.absolute()
    run_config(args, rest, 0, "trained", Path("unset"))  # reports wrong settings now
    return asyncio.run(all_seeds(args, rest))


async def all_seeds(args: argparse.Namespace, rest: Sequence[str]) -> int:
    """Runs the parts of the experiment that `results.json` does not contain yet; returns the exit code."""
    file: Path = args.out / "results.json"
    results = read(file) or []
    for folder, family in zip(("train", "held-out"), harbor_family.split(), strict=True):
        harbor_family.write(family, args.out / "tasks" / folder)
    solved = args.out / "solved.jsonl"
    if not solved.exists():
        await solve(args, rest, solved)
    talks = [list(talk) for talk in read_examples(solved)]
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        if seed not in {result["seed"] for result in results}:
            results.append(await one_seed(args, rest, seed, talks))
            write(file, results)
            report(results, MEASURES)
    return verdict(results)


async def one_seed(
    args: argparse.Namespace, rest: Sequence[str], seed: int, talks: Sequence[Talk]
) -> dict[str, Any]:
    """Runs the experiment with one seed: the warm start (training on demonstrations), then from there the
    training and the control run, whose rewards are shuffled. Returns the measures of the policy before both,
    after the training, and after the control run."""
    folder, began = args.out / f"seed{seed}", time.monotonic()
    warm = folder / "warm"
    if not (warm / "config.json").exists():  # it is written last
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        await asyncio.to_thread(warm_start, folder, seed, talks)
    result: dict[str, Any] = {"game": NAME, "seed": seed, "sft_seconds": time.monotonic() - began}
    parts = {"before": run_config(args, rest, seed, "x", warm)}
    for arm in ["trained"] if args.only_real else ["trained", "control"]:
        parts[arm] = run_config(args, rest, seed, arm, warm)
    for part, config in parts.items():
        kept = folder / f"{part}.json"
        if read(kept) is None:
            write(kept, await one_part(args, folder, part, config, warm))
        result[part] = read(kept)
        print(f"seed {seed} {part}: {result[part]}", flush=True)
    return result


async def one_part(
    args: argparse.Namespace, folder: Path, part: str, config: RunConfig, warm: Path
) -> dict[str, Any]:
    """Runs one part of the experiment with one seed; returns the measures of a policy on the held-out tasks.
    If `part` is `before`, this is the policy `warm`. Otherwise (`trained` or `control`), it is the policy
    that training with the settings `config` yields."""
    if part == "before":
        return await measure(args, config, warm)
    shutil.rmtree(folder / part, ignore_errors=True)
    began = time.monotonic()
    with Progress(config.max_steps, title=f"{folder.name} {part}") as progress:
        outcome = await EmbeddedRun(config, progress).run()
    assert outcome.checkpoint is not None
    seconds = time.monotonic() - began
    return {**await measure(args, config, outcome.checkpoint), "train_seconds": seconds}


async def solve(args: argparse.Namespace, rest: Sequence[str], file: Path) -> None:
    """Plays each training task with its reference solution, and writes the conversations to `file`. Raises
    SystemExit if a solution does not earn 1."""
    record_dir = args.out / "solved"
    shutil.rmtree(record_dir, ignore_errors=True)
    env = once_each(run_config(args, rest, 0, "x", Path("unset")), "train")
    env = env.model_copy(update={"record_dir": record_dir, "record_traces": False})
    with ScriptedServer(lambda talk: reply(task_of(talk).command())) as server:
        client = vf.EvalClientConfig(base_url=server.url, api_key_var="AIR_SCRIPTED_KEY")
        played = await evaluate(env, vf.ModelContext(model="scripted", client=client), 1)
    if wrong := [one for one in played if not one.ok or one.reward != 1.0]:
        raise SystemExit(f"{len(wrong)} solutions do not earn 1: {wrong[0].task} {wrong[0].error}")
    to_sft(sorted(record_dir.glob("*.jsonl")), file)


def task_of(talk: Sequence[Any]) -> FamilyTask:
    """Returns the task to which a recorded conversation belongs."""
    text = f"{talk[1]['content']}\n"
    return next(task for task in TASKS if f"{task.instruction}\n" in text)


def reply(command: str) -> str:
    """Returns a model's reply that runs a command and submits."""
    return get("fenced").render(THOUGHT, Action(f" {command} ", "submit"))


def warm_start(folder: Path, seed: int, talks: Sequence[Talk]) -> Path:
    """Builds a new policy with this seed, trains it on demonstrations that are written to `folder`, and
    returns the policy's folder."""
    rng = random.Random(seed)
    demos = []
    for number in range(DEMOS):
        talk = talks[number % len(talks)]
        task = task_of(talk)
        command = task.command() if rng.random() < GOOD else task.guess(rng)
        demos.append([*talk[:-1], {"role": "assistant", "content": reply(command)}])
    data = folder / "demos.jsonl"
    data.write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in demos))
    texts = [message["content"] for talk in demos[:300] for message in talk]
    policies.build(folder / "base", texts, seed=seed, max_length=512)
    flags = [f"@{CONFIGS / 'sft' / 'warmstart.toml'}", "--model.name", str(folder / "base")]
    flags += ["--data.name", str(data), "--data.seed", str(seed), "--data.seq-len", "512"]
    flags += ["--data.batch-size", "16", "--max-steps", str(SFT_STEPS)]
    flags += ["--scheduler.decay-steps", str(SFT_STEPS - 20), *GENTLY]
    flags += ["--output-dir", str(folder), "--run.name", "warm", *ONE_THREAD]
    return sft.train(overrides.build(SFTRunConfig, overrides.parse(flags, SFTRunConfig)))


def run_config(
    args: argparse.Namespace, rest: Sequence[str], seed: int, arm: str, model: Path
) -> RunConfig:
    """Returns the settings of the run file for small policies; for the arm `control`, the control run, with
    the overlay that shuffles rewards within each group."""
    files = [f"@{CONFIGS / 'harbor' / 'small.toml'}"]
    if arm == "control":
        files.append(f"@{CONFIGS / 'embedded' / 'shuffled.toml'}")
    flags = ["--embedded.seed", str(seed), "--model.name", str(model)]
    flags += ["--output-dir", str(args.out), "--run.name", f"seed{seed}/{arm}", *ONE_THREAD]
    taskset = "--orchestrator.train.source.0.env.taskset"
    flags += [f"{taskset}.tasks", json.dumps(["harbor:train"])]
    flags += [f"{taskset}.harbor.root", str(args.out / "tasks")]
    return overrides.build(RunConfig, overrides.parse([*files, *flags, *rest], RunConfig))


def read(file: Path) -> Any:
    """Returns the content of a JSON file with results, or None if the file does not exist."""
    return json.loads(file.read_text()) if file.exists() else None


def write(file: Path, results: Any) -> None:
    """Writes results to a JSON file."""
    write_whole(file, json.dumps(results, indent=1).encode())


async def measure(args: argparse.Namespace, config: RunConfig, model: Path) -> dict[str, Any]:
    """Plays the held-out tasks at the training temperature, and returns the measures of the episodes."""
    rollouts = await _play(config, model, args.plays)
    good = [rollout for rollout in rollouts if rollout.ok]
    found = {"reward": fmean(one.reward for one in good)}
    found["well_formed"] = metrics.of_rollouts(good)["well_formed"] or 0.0
    for kind in harbor_family.KINDS:
        mine = [one.reward for one in good if f"-{kind}-" in one.task]
        found[kind] = fmean(mine)
    return {**found, "episodes": len(rollouts), "failed": len(rollouts) - len(good)}


def once_each(config: RunConfig, family: str) -> ResearchEnvConfig:
    """Returns the environment settings of a run, changed so that it plays each task of one part of the family
    once."""
    env = config.orchestrator.train.source[0].env
    assert isinstance(env, ResearchEnvConfig)
    more = {"tasks": [f"harbor:{family}"], "examples_per_task": 1}
    return env.model_copy(update={"taskset": env.taskset.model_copy(update=more)})


async def _play(config: RunConfig, model: Path, plays: int) -> list[Rollout]:
    policy = policies.load(model)
    env = once_each(config, "held-out")
    sampling = config.orchestrator.train.sampling
    async with served(
        policy,
        temperature=sampling.temperature,
        max_tokens=sampling.max_completion_tokens or 64,
        max_model_len=config.seq_len,
    ) as ctx:
        return await evaluate(
            with_defaults(env, policy, max_context_tokens=config.seq_len), ctx, plays
        )
