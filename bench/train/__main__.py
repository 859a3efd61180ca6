"""Compares the speed of air's embedded engine with TRL's GRPOTrainer, in one run: `make bench-train`.

    python -m bench.train --models 9M --cases short turns --rounds 3

Both sides use the same model with random weights, and the same prompts, lengths, groups of 8, threads and
float32. Each side runs in a process of its own, and TRL's process in a Python environment of its own. The
sides take turns, so that other load on the machine affects both. A round samples all episodes and trains them
once. Results are medians over rounds. The exit code is 1 if the sides differ in a number of tokens or in the
tokens that they read, or if air misses a required speed. Sampling and training are timed separately;
`trl_side.py` explains which parts of TRL are timed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.table import Table

from air.train.model.policy import Policy
from bench.train import workload
from bench.train.workload import MODELS, Case

ROOT = Path(__file__).parents[2]
TRL_PYTHON = ROOT / "build" / "trl" / "bin" / "python"
SIDES = ("air", "TRL")
PARTS = ("sampling_s", "training_s")
BARS = {"long": 2.0, "turns": 3.0}
"""The required ratio of TRL's time to air's time, for sampling and for training, by case."""


class Worker:
    """The process of one side (air or TRL), to which this program talks through pipes."""

    def __init__(self, python: Path, program: str, arguments: Sequence[str], threads: int) -> None:
        self.name = program
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed by __exit__)
        self._process = subprocess.Popen(
            [python, "-m", program, *arguments],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            assert stream is not None
            stream.close()

    def read(self) -> dict[str, Any]:
        """Returns the next line of JSON that the side writes. Raises SystemExit if the side has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            raise SystemExit(f"{self.name} failed:\n{self._log.read()[-4000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def play(self) -> dict[str, Any]:
        """Tells the side to run a round, and returns the side's measurements."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return self.read()


def build(folder: Path, name: str, max_length: int) -> None:
    """Writes a Qwen3 model with random weights, and a tokenizer with one word for each token.

    The id of the token that ends a reply is outside the model's vocabulary. So this token is never sampled,
    and all replies are equally long without a rule that would cost time.
    """
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import (
        GenerationConfig,
        PreTrainedTokenizerFast,
        Qwen3Config,
        Qwen3ForCausalLM,
    )

    shape = MODELS[name]
    words = {f"t{number}": number for number in range(shape.vocab)} | {"<end>": shape.vocab}
    inner = Tokenizer(models.WordLevel(words, unk_token="t0"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>", pad_token="t0")
    config = Qwen3Config(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=4 * shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=64,
        max_position_embeddings=max_length,
        tie_word_embeddings=True,
        eos_token_id=None,
        pad_token_id=0,
        bos_token_id=None,
    )
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=shape.vocab, pad_token_id=0)
    folder.mkdir()
    Policy(model, tokenizer, str(folder)).save(folder)


def compare(
    folder: Path, model: str, name: str, rounds: int, threads: int, sides: Sequence[str]
) -> dict[str, Any]:
    """Runs the rounds of one case on all sides in alternating order, and returns the sides' measurements."""
    case = workload.cases(model)[name]
    arguments = [str(folder), model, name, str(rounds), str(threads)]
    pythons = {"air": Path(sys.executable), "TRL": TRL_PYTHON}
    with ExitStack() as stack:
        workers = {
            side: stack.enter_context(
                Worker(pythons[side], f"bench.train.{side.lower()}_side", arguments, threads)
            )
            for side in sides
        }
        settings = {side: worker.read() for side, worker in workers.items()}
        played: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
        for number in range(rounds):
            for side in sides if number % 2 == 0 else sides[::-1]:
                played[side].append(workers[side].play())
            check(case, {side: played[side][-1] for side in sides})
        peaks = {side: worker.read()["peak_mb"] for side, worker in workers.items()}
    return {
        "model": model,
        "case": name,
        **asdict(case),
        "sampled": case.sampled,
        "settings": settings,
        "rounds": played,
        "median": {side: medians(played[side]) | {"peak_mb": peaks[side]} for side in sides},
    }


def check(case: Case, answers: dict[str, dict[str, Any]]) -> None:
    """Raises SystemExit if the sides trained different numbers of tokens, or read different tokens."""
    expected = {"trained_tokens": case.sampled, "episode_tokens": case.episodes * case.length}
    for side, answer in answers.items():
        counts = {name: answer[name] for name in expected}
        if counts != expected:
            raise SystemExit(f"{side} had {counts}, and the case is {expected}")
    if len({answer["given"] for answer in answers.values()}) != 1:
        raise SystemExit("the sides read different prompts or observations")


def medians(rounds: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Returns the median over rounds of the seconds of sampling and of training."""
    return {part: statistics.median(one[part] for one in rounds) for part in PARTS}


def ratios(result: dict[str, Any]) -> dict[str, float]:
    """Returns the ratios of TRL's time to air's for each part, and the ratio of air's peak memory to
    TRL's."""
    air, trl = (result["median"][side] for side in SIDES)
    speed = {part: trl[part] / air[part] for part in PARTS}
    return speed | {"peak_mb": air["peak_mb"] / trl["peak_mb"]}


def missed(result: dict[str, Any]) -> list[str]:
    """Returns texts that describe the requirements that a case misses; an empty list if it misses none."""
    found, bar = ratios(result), BARS.get(result["case"], 0.0)
    name = f"{result['model']} {result['case']}"
    short = [
        f"{name}: {part.removesuffix('_s')} {found[part]:.2f} times as fast, below {bar:g}"
        for part in PARTS
        if found[part] < bar
    ]
    if found["peak_mb"] >= 1:
        short.append(f"{name}: peak memory {found['peak_mb']:.2f} of TRL's, not lower")
    return short


def report(results: Sequence[dict[str, Any]]) -> None:
    """Prints the results: as a table in a terminal, otherwise as a Markdown table for `experiments.md`."""
    columns = ["model", "one step", "sampling, s: air", "TRL", "TRL / air"]
    columns += ["training, s: air", "TRL", "TRL / air", "peak MB: air", "TRL"]
    table = Table(*columns)
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for result in results:
        air, trl = (result["median"][side] for side in SIDES)
        found = ratios(result)
        cells = [
            result["model"],
            f"{result['groups']} x {workload.GROUP} episodes, {result['what']}",
        ]
        for part in PARTS:
            cells += [f"{air[part]:.2f}", f"{trl[part]:.2f}", f"{found[part]:.2f}"]
        cells += [f"{air['peak_mb']:.0f}", f"{trl['peak_mb']:.0f}"]
        table.add_row(*cells)
        lines.append(f"| {' | '.join(cells)} |")
    if sys.stdout.isatty():
        Console().print(table)
    else:
        print("\n".join(lines))


def machine(threads: int) -> dict[str, Any]:
    """Returns the properties of the machine on which the results depend: cores, threads, load and date."""
    return {
        "cores": os.cpu_count(),
        "threads": threads,
        "load_before": os.getloadavg()[0],
        "date": time.strftime("%Y-%m-%d %H:%M"),
    }


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=["9M", "50M"])
    parser.add_argument("--cases", nargs="+", choices=["long", "short", "turns"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path, default=Path("outputs/bench-train.json"))
    args = parser.parse_args()
    if not TRL_PYTHON.exists():
        parser.error("TRL is not installed: use `make bench-train`")
    return args


def main() -> int:
    args = parsed()
    began, results = time.monotonic(), list[dict[str, Any]]()
    about = machine(args.threads)
    with tempfile.TemporaryDirectory(prefix="air-bench-train-") as name:
        for model in args.models:
            folder = Path(name) / model
            build(folder, model, max_length=2048)
            for case in args.cases or list(workload.cases(model)):
                results.append(compare(folder, model, case, args.rounds, args.threads, SIDES))
                print(f"{model} {case}: done after {time.monotonic() - began:.0f} s", flush=True)
            shutil.rmtree(folder)
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps({**about, "results": results}, indent=1))
    report(results)
    short = [line for result in results for line in missed(result)]
    print(
        "\n".join(
            [*short, f"{args.json} has each round. Load at the start: {about['load_before']:.1f}"]
        )
    )
    return 1 if short else 0


if __name__ == "__main__":
    raise SystemExit(main())
