"""Trains two tiny policies together on generated problems of arithmetic and lists: `make coevolve`.

The executor answers problems, and the proposer writes them. The program builds both policies, with about one
million weights each, and trains them on demonstrations first: the executor answers some problems, the
proposer writes mostly easy ones. Then it calls `air coevolve` for each arm and seed:

    coevolve    both policies are trained
    fixed       only the executor is trained: the proposer is a random curriculum of the same size
    copies      both are trained, and the proposer pays no penalty for repeated problems

Other flags are passed to `air coevolve`. The same command continues an interrupted program.

    make coevolve ARGS="--seeds 0 --arms coevolve --rounds 2"
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from learning_worlds import ONE_THREAD

from air import paths
from air.cli.runs import sft
from air.config import read_toml
from air.train.config import overrides
from air.train.config.coevolve_config import CoevolveConfig
from air.train.config.sft_config import SFTRunConfig
from air.train.model import policy as policies
from air.worlds.proposals.posed import INSTRUCTIONS
from air.worlds.proposals.whole_reply import WholeReply

CONFIGS = paths.shipped("configs")
FILE = CONFIGS / "agent0" / "small.toml"
ARMS: dict[str, tuple[str, ...]] = {
    "coevolve": (),
    "fixed": ("--proposer.frozen",),
    "copies": ("--payment.repetition", "0"),
}
EASY, LARGEST = 9, 49
"""The largest number in an easy problem, and the largest in any problem."""
MOST_TOKENS = 256
PROPOSE = read_toml(FILE)["payment"]["instructions"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", type=Path, default=Path("outputs/coevolve-policy"))
    parser.add_argument("--output-dir", type=Path, default=Path("outputs"))
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--demos", type=int, default=4000, help="demonstrations for each policy")
    parser.add_argument("--sft-steps", type=int, default=260)
    args, rest = parser.parse_known_args()
    flags = [f"@{FILE}", *rest]
    overrides.build(
        CoevolveConfig, overrides.parse(flags, CoevolveConfig)
    )  # reports wrong flags now
    build(args.policy, demos=args.demos, steps=args.sft_steps)
    air = str(Path(sys.executable).with_name("air"))
    for seed in args.seeds:
        for arm in args.arms:
            own = ["--name", f"agent0-small-{arm}-seed{seed}", "--seed", str(seed)]
            own += ["--output-dir", str(args.output_dir), *ARMS[arm]]
            own += ["--proposer.model", str(args.policy / "proposer")]
            own += ["--executor.model", str(args.policy / "executor")]
            own += ["--held-out.data", str(args.policy / "held_out.jsonl")]
            code = subprocess.run([air, "coevolve", "@", str(FILE), *own, *rest]).returncode
            if code:
                return code
    return 0


def build(folder: Path, *, demos: int, steps: int) -> None:
    """Writes 400 questions for evaluation, which are held out from training, and both policies (executor and
    proposer) into the folder, unless a policy exists there already."""
    rng = random.Random("held out")
    held_out = dict(problem(rng, LARGEST) for _ in range(400))
    rows = [{"question": q, "answer": a} for q, a in held_out.items()]
    paths.write_whole(folder / "held_out.jsonl", _lines(rows))
    for name, talk in (("executor", answering), ("proposer", proposing)):
        if not (folder / name / "config.json").is_file():  # it is written last
            warm_start(folder, name, talk, set(held_out), demos=demos, steps=steps)


def problem(rng: random.Random, largest: int) -> tuple[str, str]:
    """Returns a random problem of arithmetic or lists, with numbers up to `largest`, and its answer."""
    a, b, c = (rng.randint(0, largest) for _ in range(3))
    return rng.choice(
        [
            (f"What is {a} + {b}?", str(a + b)),
            (f"What is {max(a, b)} - {min(a, b)}?", str(max(a, b) - min(a, b))),
            (f"What is the largest of {a}, {b}, {c}?", str(max(a, b, c))),
            (f"What is the sum of {a}, {b}, {c}?", str(a + b + c)),
        ]
    )


def answering(rng: random.Random) -> tuple[str, str, str]:
    """Returns a demonstration for the executor: a problem, the executor's prompt, and its reply."""
    question, answer = problem(rng, LARGEST if rng.random() < 0.7 else EASY)
    return question, f"{INSTRUCTIONS}\n\n{question}", f"\\boxed{{{answer}}}"


def proposing(rng: random.Random) -> tuple[str, str, str]:
    """Returns a demonstration for the proposer: a problem, the proposer's prompt, and its reply. About two of
    three problems have numbers up to `EASY` only."""
    question, answer = problem(rng, EASY if rng.random() < 2 / 3 else LARGEST)
    reply = f"<question>{question}</question> \\boxed{{{answer}}}"
    return question, PROPOSE, reply


def warm_start(
    folder: Path,
    name: str,
    talk: Callable[[random.Random], tuple[str, str, str]],
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
    talks = []
    while len(talks) < demos:
        question, prompt, reply = talk(rng)
        if question not in held_out:
            talks.append(_messages(prompt, reply))
    data = folder / f"{name}.jsonl"
    paths.write_whole(data, _lines([{"messages": messages} for messages in talks]))
    texts = [message["content"] for messages in talks[:400] for message in messages]
    policies.build(folder / f"{name}-base", texts, seed=0, vocab=320, max_length=MOST_TOKENS)
    flags = [f"@{CONFIGS / 'sft' / 'warmstart.toml'}", "--model.name", str(folder / f"{name}-base")]
    flags += ["--data.name", str(data), "--data.seq-len", str(MOST_TOKENS)]
    flags += ["--data.batch-size", "8", "--max-steps", str(steps)]
    flags += ["--scheduler.decay-steps", str(max(1, steps - 20)), "--optim.lr", "3e-3"]
    flags += ["--output-dir", str(folder), "--run.name", name, *ONE_THREAD]
    sft.train(overrides.build(SFTRunConfig, overrides.parse(flags, SFTRunConfig)))


def _messages(prompt: str, reply: str) -> list[dict[str, str]]:
    return [
        {"role": "system", "content": WholeReply().instructions},
        {"role": "user", "content": prompt},
        {"role": "assistant", "content": reply},
    ]


def _lines(rows: Sequence[object]) -> bytes:
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


if __name__ == "__main__":
    raise SystemExit(main())
