"""Tests whether a policy of about one million weights learns when to call the calculator: `make learning
ARGS=--tools`.

The questions are sums of two digits, which a small policy knows by heart, and products of two-digit numbers,
which it cannot compute. A right answer earns 1, and a call of the calculator costs 0.3. So the best policy
calls the calculator for products only.

For each seed, a scripted player writes demonstrations. It calls the calculator in half of the episodes,
whatever the question. In two of five demonstrations the calculator is not offered: these teach all sums, also
the held-out ones, so that it is known which questions need the calculator. With a calculator, no
demonstration is about a held-out question.
Then `sft` trains a new policy on the demonstrations (the warm start). GRPO trains it further
(`configs/grl/small.toml`, but with AdamW), and separately a control whose rewards are shuffled within each
group. Before and after, the policy answers held-out questions of both kinds, with and without the calculator.

The program stops if a warm start has not learnt to copy the calculator's result (then a call only costs) or
does not know the sums (then a call pays for them, too).

Results are written after each seed; the same command continues an interrupted program. The exit code is 0 if
the mean gain of the reward exceeds two standard errors over the seeds, and the control's gain does not.

    make learning ARGS="--tools --seeds 1"
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

from rich.console import Console
from rich.table import Table

from air import paths
from air.actions import Action, ToolCall, get
from air.actions.base import Standing
from air.cli.runs import sft
from air.errors import UsageError
from air.train.config import overrides
from air.train.config.run_config import RunConfig
from air.train.config.sft_config import SFTRunConfig
from air.train.loop import metrics
from air.train.loop.progress import Progress
from air.train.loop.run import EmbeddedRun
from air.train.model import policy as policies
from air.worlds import sources
from air.worlds.sources import VALIDATION_SEED, WorldTask
from bench.learning import worlds as learning_worlds
from bench.learning.seeds import mean_and_error
from bench.learning.worlds import GENTLY, HIDDEN, ONE_THREAD, write_settings

CONFIGS = paths.shipped("configs")
FORMAT = "action"
KINDS = ("sum", "product")
MEASURES = {"reward": "reward", "right": "answer_right", "calls": "tool_calls"}
"""The measures of a policy by name, which are columns of the table: each is the mean over episodes of the
metric that is named here."""
LEARNT = 0.8
"""The smallest share of right answers among the products for which a warm start calls the calculator, and
among the sums for which none is offered."""
HELD_OUT = 0.2
"""The share of held-out questions among the demonstrations without a calculator. It is their share of all
sums, so that each sum is asked about equally often."""
COLUMNS = tuple(f"{kind} {name}" for kind in KINDS for name in (*MEASURES, "right without"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tools", action="store_true", help="this program, and not learning.py")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=64, help="held-out ones of each kind")
    parser.add_argument("--demos", type=int, default=16000)
    parser.add_argument("--sft-steps", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=Path("outputs/learning-tools"))
    parser.add_argument("--only-real", action="store_true", help="leave the control out")
    args, rest = parser.parse_known_args()
    args.out = args.out.absolute()
    try:
        claim(args, rest)
    except UsageError as error:
        parser.error(str(error))
    write_rows(args.out)
    return asyncio.run(all_seeds(args, rest))


def claim(args: argparse.Namespace, rest: Sequence[str]) -> None:
    """Writes the settings to the folder of results. Raises UsageError if the folder has results of other
    settings, or if a flag in `rest` is wrong."""
    config = run_config(argparse.Namespace(out=Path("unset")), rest, 0, "trained", Path("unset"))
    settings = {
        "training": json.loads(overrides.dump(config)),
        "warm start": [args.demos, args.sft_steps, HELD_OUT, HIDDEN, *GENTLY],
        "episodes": args.episodes,
    }
    write_settings(args.out, settings)


def write_rows(folder: Path) -> None:
    """Writes the files of the tasks: the rows with the questions, and the settings with and without the
    calculator."""
    folder.mkdir(parents=True, exist_ok=True)
    sums = [(a, b, a + b, "sum") for a in range(10) for b in range(10)]
    products = [(a, b, a * b, "product") for a in range(11, 100) for b in range(11, 100)]
    random.Random(0).shuffle(products)
    rows = [
        {"question": f"{a} {'+' if kind == 'sum' else '*'} {b}", "answer": str(c), "kind": kind}
        for a, b, c, kind in (*sums, *products[:1500])
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    checker = Path(__file__).with_name("tools_checker.py")
    common = (
        'data = "rows.jsonl"\nmetrics = ["right"]\nsuccess_at = 0.5\nturns = 2\n'
        f'format = "{FORMAT}"\ninstructions = "Compute."\nchecker = "{checker}:paid"\n'
    )
    (folder / "with.toml").write_text(common + 'tools = ["calculator"]\n')
    (folder / "without.toml").write_text(common)


def task_id(folder: Path, kind: str, *, tools: bool = True) -> str:
    """Returns the id of the task with the questions of one kind. `tools`: whether it offers the
    calculator."""
    return f"rows:{folder / ('with' if tools else 'without')}.toml#where.kind={kind}"


async def all_seeds(args: argparse.Namespace, rest: Sequence[str]) -> int:
    """Runs the seeds that `results.json` does not contain yet; returns the exit code."""
    file = args.out / "results.json"
    results: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() else []
    for seed in range(args.seeds):
        if seed not in {result["seed"] for result in results}:
            try:
                results.append(await one_seed(args, rest, seed))
            except WarmStartFailed as error:
                print(error)
                return 1
            file.write_text(json.dumps(results, indent=1))
            report(results)
    return verdict(results)


async def one_seed(args: argparse.Namespace, rest: Sequence[str], seed: int) -> dict[str, Any]:
    """Runs the experiment with one seed: the warm start (training on demonstrations), then from there the
    training and the control run, whose rewards are shuffled. Returns the measures of the policy before both,
    after the training, and after the control run. Raises WarmStartFailed."""
    folder, began = args.out / f"seed{seed}", time.monotonic()
    warm = folder / "warm"
    if not (warm / "config.json").exists():  # it is written last
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        await warm_start(args, folder, seed)
    result: dict[str, Any] = {"seed": seed, "sft_seconds": time.monotonic() - began}
    config = run_config(args, rest, seed, "trained", warm)
    result["before"] = await measure(args, config, warm)
    gate(seed, result["before"])
    for arm in ["trained"] if args.only_real else ["trained", "control"]:
        shutil.rmtree(folder / arm, ignore_errors=True)
        config = run_config(args, rest, seed, arm, warm)
        began = time.monotonic()
        with Progress(config.max_steps, title=f"tools seed {seed} {arm}") as progress:
            outcome = await EmbeddedRun(config, progress).run()
        assert outcome.checkpoint is not None
        result[arm] = await measure(args, config, outcome.checkpoint)
        result[arm]["train_seconds"] = time.monotonic() - began
    return result


class WarmStartFailed(Exception):
    """A warm start has not learnt what the training needs."""


def gate(seed: int, before: dict[str, Any]) -> None:
    """Prints how well a warm start copies the calculator's result, and whether it knows the sums. Raises
    WarmStartFailed if one of both is too bad. `before` has the measures of the warm start. Products are never
    right without a call, so their shares of right answers and of calls suffice."""
    copied = before["product right"] / before["product calls"] if before["product calls"] else 0.0
    known = before["sum right without"]
    print(
        f"seed {seed}, warm start: {copied:.3f} of the products right for which it calls the calculator, "
        f"{known:.3f} of the sums right without one (both at least {LEARNT})",
        flush=True,
    )
    if min(copied, known) < LEARNT:
        raise WarmStartFailed(
            "the warm start does not suffice: raise --demos and --sft-steps, and name another --out"
        )


async def warm_start(args: argparse.Namespace, folder: Path, seed: int) -> Path:
    """Builds a new policy with this seed, trains it on demonstrations that are written to `folder`, and
    returns the policy's folder."""
    talks = await demonstrations(args, seed)
    data = folder / "demos.jsonl"
    data.write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in talks))
    texts = [message["content"] for talk in talks[:40] for message in talk]
    policies.build(
        folder / "base",
        texts,
        seed=seed,
        max_length=1024,
        hidden=HIDDEN,
        initializer_range=HIDDEN**-0.5,
    )
    flags = [f"@{CONFIGS / 'sft' / 'warmstart.toml'}", "--model.name", str(folder / "base")]
    flags += ["--data.name", str(data), "--data.seed", str(seed), "--data.seq-len", "1024"]
    flags += ["--data.batch-size", "8", "--max-steps", str(args.sft_steps)]
    flags += ["--scheduler.decay-steps", str(args.sft_steps - 20), *GENTLY]
    flags += ["--output-dir", str(folder), "--run.name", "warm", *ONE_THREAD]
    return sft.train(overrides.build(SFTRunConfig, overrides.parse(flags, SFTRunConfig)))


async def demonstrations(args: argparse.Namespace, seed: int) -> list[list[dict[str, str]]]:
    """Returns the conversations of a warm start, `args.demos` of them."""
    tasks = {
        (kind, tools): sources.load(task_id(args.out, kind, tools=tools))
        for kind in KINDS
        for tools in (True, False)
    }
    numbers, talks = random.Random(seed), []
    for number in range(args.demos):
        tools = numbers.random() < 0.6
        kind = numbers.choice(KINDS) if tools else "sum"
        held_out = not tools and numbers.random() < HELD_OUT
        first = VALIDATION_SEED if held_out else 0
        talks.append(await conversation(tasks[kind, tools], first + number, numbers))
    return talks


async def conversation(task: WorldTask, seed: int, numbers: random.Random) -> list[dict[str, str]]:
    """Returns the conversation of one demonstration, as the harness would show it to a model. If the task
    offers the calculator, half of the demonstrations call it. An answer without a call is right for sums. For
    products it is an estimate, with both factors rounded down to tens: nearly always wrong, but no noise that
    hides the rest of the demonstrations from so small a policy."""
    form = get(FORMAT).with_tools(task.tools, answers=True)
    world = task.world()
    first = await world.reset(seed)
    messages = [
        {"role": "system", "content": form.instructions},
        {"role": "user", "content": f"{task.instructions}\n\n{first.text}"},
    ]
    left, sign, right = first.text.split()
    exact = sign == "+"
    answer = str(int(left) + int(right) if exact else int(left) // 10 * (int(right) // 10) * 100)
    if task.tools and numbers.random() < 0.5:
        call = Action(tool=ToolCall("calculator", arguments={"expression": first.text}))
        messages.append({"role": "assistant", "content": form.render("", call)})
        step = await world.step(call)
        answer = step.observation.text
        messages.append({"role": "user", "content": answer + form.footer(Standing(left=1))})
    messages.append({"role": "assistant", "content": answer})
    await world.close()
    return messages


def run_config(
    args: argparse.Namespace, rest: Sequence[str], seed: int, arm: str, model: Path
) -> RunConfig:
    """Returns the settings of the run file for small policies, with both kinds of questions; for the arm
    `control`, the control run, with the overlay that shuffles rewards within each group."""
    files = [f"@{CONFIGS / 'grl' / 'small.toml'}"]
    if arm == "control":
        files.append(f"@{CONFIGS / 'embedded' / 'shuffled.toml'}")
    env = "--orchestrator.train.source.0.env"
    tasks = json.dumps([task_id(args.out, kind) for kind in KINDS])
    flags = ["--embedded.seed", str(seed), "--model.name", str(model), "--max-steps", "60"]
    flags += ["--output-dir", str(args.out), "--run.name", f"seed{seed}/{arm}"]
    flags += [f"{env}.taskset.tasks", tasks, f"{env}.agent.harness.format", FORMAT]
    flags += ["--orchestrator.train.sampling.max-completion-tokens", "24"]
    flags += ["--orchestrator.batch-size", "48"]
    flags += ["--trainer.optim.type", "adamw", "--trainer.optim.lr", "3e-4"]
    flags += ["--trainer.scheduler.decay-steps", "0", f"{env}.format-penalty", "0"]
    parsed = overrides.parse([*files, *flags, *ONE_THREAD, *rest], RunConfig)
    return overrides.build(RunConfig, parsed)


async def measure(args: argparse.Namespace, config: RunConfig, model: Path) -> dict[str, Any]:
    """Plays held-out episodes of each kind of question at the training temperature, with and without the
    calculator; returns their measures."""
    measured: dict[str, Any] = {}
    for kind in KINDS:
        for tools in (True, False):
            name = task_id(args.out, kind, tools=tools)
            rollouts = await learning_worlds.play(config, model, args.episodes, [name])
            good = [rollout for rollout in rollouts if rollout.ok]
            if tools:
                measured[f"{kind} reward"] = metrics.of_rollouts(good)["reward"]
                for column, fact in list(MEASURES.items())[1:]:
                    measured[f"{kind} {column}"] = fmean(r.metric(fact) or 0.0 for r in good)
            else:
                right = fmean(r.metric(MEASURES["right"]) or 0.0 for r in good)
                measured[f"{kind} right without"] = right
            measured["failed"] = measured.get("failed", 0) + len(rollouts) - len(good)
    measured["reward"] = fmean(measured[f"{kind} reward"] for kind in KINDS)
    return measured


def report(results: Sequence[dict[str, Any]]) -> None:
    """Prints the means over the seeds that have run so far."""
    table = Table(title=f"means over {len(results)} seeds", title_justify="left")
    arms = [arm for arm in ("before", "trained", "control") if arm in results[0]]
    for column in ("measure", *arms):
        table.add_column(column)
    for name in ("reward", *COLUMNS):
        table.add_row(name, *(f"{fmean(r[arm][name] for r in results):.3f}" for arm in arms))
    Console(width=100).print(table)


def verdict(results: Sequence[dict[str, Any]]) -> int:
    """Prints the conclusions and returns the exit code. It is 0 if the reward rises by more than two standard
    errors, and the control's reward does not. One seed has no standard error; then only the gains are
    printed."""
    right = True
    for arm in ("trained", "control"):
        gains = [r[arm]["reward"] - r["before"]["reward"] for r in results if arm in r]
        if len(gains) < 2:
            print(f"{arm}: {gains}: one seed shows no error")
            continue
        mean, error = mean_and_error(gains)
        rises = mean > 2 * error
        right = right and rises == (arm == "trained")
        print(f"{arm}: {mean:+.3f} ± {error:.3f}: {'rises' if rises else 'does not rise'}")
    return 0 if right else 1
