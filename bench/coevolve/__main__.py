"""Trains two tiny policies together on generated problems of arithmetic and lists: `make coevolve`.

The executor answers problems, and the proposer writes them. For each seed, the program builds both policies,
with about one million weights each, and trains them on demonstrations first (the warm start): the executor
knows easy problems and calls its calculator for half of the others, the proposer writes mostly easy ones
(`problems.py`). The program prints what the warm start can do, and stops if it does not suffice.
Then it calls `air coevolve` for each arm:

    coevolve    both policies are trained
    random      only the executor is trained, on all kinds of proposals of the untrained proposer: a random
                curriculum of the same size. This is the main control
    free        both are trained, and the proposer may leave the questions of its warm start: it pays no KL
                penalty, and has more steps and a higher learning rate
    copies      as `free`, but the proposer pays no penalty for repeated problems either

At the end it prints the measures of all rounds, and which of three claims are shown (`results.py`).
They are also in `agent0-small-results.json` in the output folder. The exit code is 1 if a claim is not shown.
In all arms the executor is trained on at most `generation.rows` problems in each round.

Other flags are passed to `air coevolve`. The same command continues an interrupted program.

    make coevolve ARGS="--seeds 0 --arms coevolve --rounds 2"
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from air import paths
from air.cli.runs import sft
from air.errors import UsageError
from air.rewards.proposals.agreement import same
from air.train.coevolve.executor import open_executor
from air.train.coevolve.plan import Plan, plan
from air.train.config import overrides
from air.train.config.coevolve_config import CoevolveConfig
from air.train.config.sft_config import SFTRunConfig
from air.train.model import policy as policies
from bench.coevolve import results
from bench.coevolve.problems import (
    answering,
    demonstrations,
    held_out,
    proposing,
    questions,
)
from bench.learning.worlds import GENTLY, HIDDEN, ONE_THREAD

CONFIGS = paths.shipped("configs")
FILE = CONFIGS / "agent0" / "small.toml"
FREE = (
    *("--proposer.settings.embedded.kl.coefficient", "0"),
    *("--proposer.settings.trainer.optim.lr", "1e-3"),
    *("--proposer.settings.max_steps", "20"),
)
ARMS: dict[str, tuple[str, ...]] = {
    "coevolve": (),
    "random": ("--proposer.frozen", "--generation.least", "0", "--generation.most", "1"),
    "free": FREE,
    "copies": (*FREE, "--payment.repetition", "0"),
}
WARM_STARTS = {"executor": (answering, 4000, 512, 512), "proposer": (proposing, 1000, 320, 256)}
"""Of each policy: the function that makes its demonstrations, the number of steps of its warm start, the size
of its vocabulary, and the maximum number of tokens of a conversation."""
BATCH = 8
"""The number of rows in a step of a warm start. There are `BATCH` demonstrations for each step, but a row
holds several, so that each is used two or three times."""
FIRST = 400
"""The number of demonstrations from which a tokenizer is made."""
EASY_ACCURACY = 0.95
"""The smallest accuracy on problems of size 1 with which a warm start suffices. An executor that fails at
these, too, has no problems of medium difficulty."""


@dataclass(frozen=True)
class Bench:
    """The settings of all co-evolutions of this program."""

    policy: Path
    """The folder of held-out questions and warm starts."""
    output_dir: Path
    rest: Sequence[str]
    """Flags for `air coevolve`."""

    @property
    def results(self) -> Path:
        """The JSON file of results."""
        return self.output_dir / "agent0-small-results.json"

    def flags(self, arm: str, seed: int) -> list[str]:
        """Returns the arguments of `air coevolve` for one arm and seed."""
        models = self.policy / f"seed{seed}"
        own = ["--name", f"agent0-small-{arm}-seed{seed}", "--seed", str(seed)]
        own += ["--output-dir", str(self.output_dir), *ARMS[arm]]
        own += ["--proposer.model", str(models / "proposer")]
        reference = "--proposer.settings.embedded.reference.model"
        own += [reference, str(models / "proposer")]
        own += ["--executor.model", str(models / "executor")]
        own += ["--held-out.data", str(self.policy / "held_out.jsonl")]
        return ["@", str(FILE), *own, *self.rest]

    def plan(self, arm: str, seed: int) -> Plan:
        flags = overrides.parse(self.flags(arm, seed), CoevolveConfig)
        return plan(overrides.build(CoevolveConfig, flags))

    def coevolve(self, arm: str, seed: int, *more: str) -> int:
        """Runs `air coevolve` for one arm and seed, and returns the exit code."""
        air = str(Path(sys.executable).with_name("air"))
        return subprocess.run([air, "coevolve", *self.flags(arm, seed), *more]).returncode


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--policy", type=Path, default=Path("outputs/coevolve-policy"))
    parser.add_argument("--output-dir", type=Path, default=Path("outputs"))
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    # The executor's warm start with seed 1 knows too few of the easiest problems (0.930).
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 2, 3])
    parser.add_argument("--only-gate", action="store_true", help="only the warm starts")
    args, rest = parser.parse_known_args()
    bench = Bench(args.policy, args.output_dir, rest)
    try:
        bench.plan(args.arms[0], args.seeds[0])
    except UsageError as error:
        parser.error(str(error))
    rows = [{"question": q, "answer": a} for q, a in held_out().items()]
    paths.write_whole(args.policy / "held_out.jsonl", _lines(rows))
    for seed in args.seeds:
        for name in WARM_STARTS:
            warm_start(args.policy / f"seed{seed}", name, seed)
        if code := gate(bench, args.arms[0], seed):
            return code
        for arm in () if args.only_gate else args.arms:
            if code := bench.coevolve(arm, seed):
                return code
            write_results(bench, args.arms, args.seeds)
    return 0 if args.only_gate else results.exit_code(bench.results)


def write_results(bench: Bench, arms: Sequence[str], seeds: Sequence[int]) -> None:
    """Writes and prints the results of these arms and seeds so far."""
    plans = [(bench.plan(arm, seed), arm, seed) for arm in arms for seed in seeds]
    begun = [results.result(*one) for one in plans if one[0].folder.is_dir()]
    results.write(bench.results, begun)


def warm_start(folder: Path, name: str, seed: int) -> None:
    """Builds a new policy with this seed, trains it on demonstrations (`WARM_STARTS`), none of them about a
    held-out question, and writes it to `folder/name`. Does nothing if it exists. Ends the program if it was
    trained in another way, by an earlier version of this program."""
    own = f"demonstrations of {name} {seed}"
    talk, steps, vocab, most = WARM_STARTS[name]
    first = demonstrations(talk, own, FIRST, held_out().keys())
    recipe = _lines([{"steps": steps, "vocabulary": vocab, "longest": most, "first": first}])
    written = folder / f"{name}-recipe.json"
    if (folder / name / "config.json").is_file():  # it is written last
        if written.is_file() and written.read_bytes() == recipe:
            return
        raise SystemExit(
            f"{folder / name}: trained on other demonstrations: give another --policy, or remove it"
        )
    for part in (name, f"{name}-base"):
        shutil.rmtree(folder / part, ignore_errors=True)  # of an interrupted warm start
    paths.write_whole(written, recipe)
    talks = demonstrations(talk, own, BATCH * steps, held_out().keys())
    data = folder / f"{name}.jsonl"
    paths.write_whole(data, _lines([{"messages": messages} for messages in talks]))
    texts = [message["content"] for messages in first for message in messages]
    policies.build(
        folder / f"{name}-base",
        texts,
        seed=seed,
        vocab=vocab,
        max_length=most,
        hidden=HIDDEN,
        initializer_range=HIDDEN**-0.5,
    )
    flags = [f"@{CONFIGS / 'sft' / 'warmstart.toml'}", "--model.name", str(folder / f"{name}-base")]
    flags += ["--data.name", str(data), "--data.seed", str(seed), "--data.seq-len", str(most)]
    flags += ["--data.batch-size", str(BATCH), "--max-steps", str(steps)]
    flags += ["--scheduler.decay-steps", str(steps - 20), *GENTLY]
    flags += ["--output-dir", str(folder), "--run.name", name, *ONE_THREAD]
    sft.train(overrides.build(SFTRunConfig, overrides.parse(flags, SFTRunConfig)))


def gate(bench: Bench, arm: str, seed: int) -> int:
    """Measures the warm start of one seed, and prints what it can do. Returns the exit code: 1 if the
    executor fails at too many of the easiest problems."""
    planned = bench.plan(arm, seed)
    measured = results.result(planned, arm, seed)["rounds"]
    # Round 0 measures both policies, and trains nothing.
    if not measured and (code := bench.coevolve(arm, seed, "--rounds", "0")):
        return code
    easy = asyncio.run(accuracy(planned, questions(f"easy {seed}", [1], 25)))
    first = results.result(planned, arm, seed)["rounds"][0]
    print(
        f"seed {seed}, warm start: accuracy {easy:.3f} on problems of size 1 (at least "
        f"{EASY_ACCURACY}), {first['held_out']:.3f} on held-out ones; "
        f"{first['in_range']:.3f} of the first proposals in range",
        flush=True,
    )
    if easy < EASY_ACCURACY:
        print(
            "the warm start does not suffice: take another seed, or raise the steps in WARM_STARTS "
            "and give another --policy"
        )
        return 1
    return 0


async def accuracy(planned: Plan, problems: Mapping[str, str]) -> float:
    """Returns the share of right answers of the first executor, which answers each of `problems` (questions
    with their answers) once, with the settings of the answers to proposals."""
    answers, model = planned.config.answers, planned.config.executor.model
    settings = planned.settings(planned.executor, "posed:later", answers.temperature)
    async with open_executor(model, settings, planned.config.seed, tools=planned.tools) as executor:
        found = await executor.answers(list(problems), 1, answers.max_turns, planned.sampling())
    pairs = zip(found, problems.values(), strict=True)
    right = [a is not None and same(a, label) for one, label in pairs for a in one.answers]
    return sum(right) / len(right)


def _lines(rows: Sequence[Any]) -> bytes:
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


if __name__ == "__main__":
    raise SystemExit(main())
