"""Trains two tiny policies together on generated problems of arithmetic and lists: `make coevolve`.

The executor answers problems, and the proposer writes them. The program builds both policies, with about one
million weights each, and trains them on demonstrations first: the executor answers some problems, the
proposer writes mostly easy ones. Then it calls `air coevolve` for each arm and seed:

    coevolve    both policies are trained
    fixed       only the executor is trained: the proposer is a random curriculum of the same size
    copies      both are trained, and the proposer pays no penalty for repeated problems

With `--tools` the executor has a calculator, and calls it for about half of the problems
(`configs/agent0/small_tools.toml`).

Other flags are passed to `air coevolve`. The same command continues an interrupted program.

    make coevolve ARGS="--seeds 0 --arms coevolve --rounds 2"
    make coevolve ARGS="--tools --seeds 0 --arms coevolve"
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from learning_worlds import ONE_THREAD

from air import paths
from air.cli.runs import sft
from air.config import read_toml
from air.tools import ToolSet, load
from air.train.config import overrides
from air.train.config.coevolve_config import CoevolveConfig
from air.train.config.sft_config import SFTRunConfig
from air.train.model import policy as policies
from air.worlds.proposals.posed import INSTRUCTIONS, WITH_TOOLS
from air.worlds.proposals.whole_reply import WholeReply

CONFIGS = paths.shipped("configs")
FILE, TOOLS_FILE = CONFIGS / "agent0" / "small.toml", CONFIGS / "agent0" / "small_tools.toml"
ARMS: dict[str, tuple[str, ...]] = {
    "coevolve": (),
    "fixed": ("--proposer.frozen",),
    "copies": ("--payment.repetition", "0"),
}
EASY, LARGEST = 9, 49
"""The largest number in an easy problem, and the largest in any problem."""
MOST_TOKENS, MOST_WITH_TOOLS = 256, 512
"""The maximum number of tokens of an episode, without and with tools."""
PROPOSE = read_toml(FILE)["payment"]["instructions"]
WITH_CALCULATOR = WholeReply(ToolSet(load("calculator")).schemas, answers=True)
"""The action format of an executor with a calculator."""
Messages = list[dict[str, str]]
Talk = Callable[[random.Random], tuple[str, Messages]]
"""Returns a problem's question, and a conversation about it."""


@dataclass(frozen=True)
class Problem:
    """A problem of arithmetic or lists."""

    question: str
    answer: str
    expression: str
    """What a calculator computes."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", type=Path, default=Path("outputs/coevolve-policy"))
    parser.add_argument("--output-dir", type=Path, default=Path("outputs"))
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--demos", type=int, default=4000, help="demonstrations for each policy")
    parser.add_argument("--sft-steps", type=int, default=260)
    parser.add_argument("--tools", action="store_true", help="the executor has a calculator")
    args, rest = parser.parse_known_args()
    file, executor = (TOOLS_FILE, "executor_tools") if args.tools else (FILE, "executor")
    name = "agent0-small-tools" if args.tools else "agent0-small"
    flags = [f"@{file}", *rest]
    overrides.build(
        CoevolveConfig, overrides.parse(flags, CoevolveConfig)
    )  # reports wrong flags now
    build(args.policy, executor, demos=args.demos, steps=args.sft_steps)
    air = str(Path(sys.executable).with_name("air"))
    for seed in args.seeds:
        for arm in args.arms:
            own = ["--name", f"{name}-{arm}-seed{seed}", "--seed", str(seed)]
            own += ["--output-dir", str(args.output_dir), *ARMS[arm]]
            own += ["--proposer.model", str(args.policy / "proposer")]
            own += ["--executor.model", str(args.policy / executor)]
            own += ["--held-out.data", str(args.policy / "held_out.jsonl")]
            code = subprocess.run([air, "coevolve", "@", str(file), *own, *rest]).returncode
            if code:
                return code
    return 0


def build(folder: Path, executor: str, *, demos: int, steps: int) -> None:
    """Writes 400 questions for evaluation, which are held out from training, and both policies (executor and
    proposer) into the folder, unless a policy exists there already."""
    rng = random.Random("held out")
    drawn = [problem(rng, LARGEST) for _ in range(400)]
    held_out = {one.question: one.answer for one in drawn}
    rows = [{"question": q, "answer": a} for q, a in held_out.items()]
    paths.write_whole(folder / "held_out.jsonl", _lines(rows))
    talks = {"executor": answering, "executor_tools": calling, "proposer": proposing}
    for name, talk in ((executor, talks[executor]), ("proposer", proposing)):
        if not (folder / name / "config.json").is_file():  # it is written last
            warm_start(folder, name, talk, set(held_out), demos=demos, steps=steps)


def problem(rng: random.Random, largest: int) -> Problem:
    """Returns a random problem of arithmetic or lists, with numbers up to `largest`, and its answer."""
    a, b, c = (rng.randint(0, largest) for _ in range(3))
    more, less = max(a, b), min(a, b)
    return rng.choice(
        [
            Problem(f"What is {a} + {b}?", str(a + b), f"{a} + {b}"),
            Problem(f"What is {more} - {less}?", str(more - less), f"{more} - {less}"),
            Problem(
                f"What is the largest of {a}, {b}, {c}?", str(max(a, b, c)), f"max({a}, {b}, {c})"
            ),
            Problem(f"What is the sum of {a}, {b}, {c}?", str(a + b + c), f"{a} + {b} + {c}"),
        ]
    )


def answering(rng: random.Random) -> tuple[str, Messages]:
    """Returns a demonstration for the executor without tools: a problem, and the conversation about it."""
    one = problem(rng, LARGEST if rng.random() < 0.7 else EASY)
    prompt = f"{INSTRUCTIONS}\n\n{one.question}"
    return one.question, _messages(WholeReply(), prompt, f"\\boxed{{{one.answer}}}")


def calling(rng: random.Random) -> tuple[str, Messages]:
    """Returns a demonstration for the executor with a calculator: a problem, and the conversation about it.
    In half of all cases the executor calls the calculator first."""
    one = problem(rng, LARGEST if rng.random() < 0.7 else EASY)
    texts = [f"{WITH_TOOLS}\n\n{one.question}", f"\\boxed{{{one.answer}}}"]
    if rng.random() < 0.5:
        call = {"name": "calculator", "arguments": {"expression": one.expression}}
        texts[1:1] = [json.dumps(call), f"{one.answer}\n[1 turns left]"]
    return one.question, _messages(WITH_CALCULATOR, *texts)


def proposing(rng: random.Random) -> tuple[str, Messages]:
    """Returns a demonstration for the proposer: a problem, and the conversation in which it is written. About
    two of three problems have numbers up to `EASY` only."""
    one = problem(rng, EASY if rng.random() < 2 / 3 else LARGEST)
    reply = f"<question>{one.question}</question> \\boxed{{{one.answer}}}"
    return one.question, _messages(WholeReply(), PROPOSE, reply)


def warm_start(
    folder: Path,
    name: str,
    talk: Talk,
    held_out: set[str],
    *,
    demos: int,
    steps: int,
) -> None:
    """Builds a new policy, trains it for `steps` steps on `demos` demonstrations that `talk` returns, and
    writes it to `folder/name`. Leaves out demonstrations of the questions in `held_out`."""
    for part in (name, f"{name}-base"):
        shutil.rmtree(folder / part, ignore_errors=True)  # of an interrupted warm start
    rng = random.Random(f"demonstrations of {name}")
    talks: list[Messages] = []
    while len(talks) < demos:
        question, messages = talk(rng)
        if question not in held_out:
            talks.append(messages)
    data = folder / f"{name}.jsonl"
    paths.write_whole(data, _lines([{"messages": messages} for messages in talks]))
    texts = [message["content"] for messages in talks[:400] for message in messages]
    vocab, most = (512, MOST_WITH_TOOLS) if name == "executor_tools" else (320, MOST_TOKENS)
    policies.build(folder / f"{name}-base", texts, seed=0, vocab=vocab, max_length=most)
    flags = [f"@{CONFIGS / 'sft' / 'warmstart.toml'}", "--model.name", str(folder / f"{name}-base")]
    flags += ["--data.name", str(data), "--data.seq-len", str(most)]
    flags += ["--data.batch-size", "8", "--max-steps", str(steps)]
    flags += ["--scheduler.decay-steps", str(max(1, steps - 20)), "--optim.lr", "3e-3"]
    flags += ["--output-dir", str(folder), "--run.name", name, *ONE_THREAD]
    sft.train(overrides.build(SFTRunConfig, overrides.parse(flags, SFTRunConfig)))


def _messages(form: WholeReply, *texts: str) -> Messages:
    """Returns a conversation of these texts, in turn those of the user and the assistant."""
    turns = [
        {"role": ("user", "assistant")[number % 2], "content": text}
        for number, text in enumerate(texts)
    ]
    return [{"role": "system", "content": form.instructions}, *turns]


def _lines(rows: Sequence[object]) -> bytes:
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


if __name__ == "__main__":
    raise SystemExit(main())
