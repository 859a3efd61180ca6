"""Stages 2 and 3: prime-rl's orchestrator, env server, data loader and loss, with a real vLLM, on a CPU."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.prime_rl.chain import Run, Served, broadcast, orchestrate, prepared, read_episodes
from tests.prime_rl.processes import Failed, started, wait_for_end
from tests.prime_rl.readback import Sample, as_sample, check_rewards, check_step, shipped

pytestmark = pytest.mark.primerl
Report = Callable[[str], None]


@pytest.fixture(scope="session")
def tokenizer(policy: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(policy)


@pytest.mark.parametrize("credit", ["episode", "segment"])
def test_two_steps_of_the_orchestrator(
    credit: str, served: Served, policy: Path, tokenizer: Any, tmp_path: Path, report: Report
) -> None:
    """It exits with 0, and its batches are what our environment and recorder saw."""
    steps, size = 2, {"episode": 8, "segment": 20}[credit]
    with prepared(served, tmp_path, credit=credit, max_steps=steps, batch_size=size) as (made, _):
        broadcast(made, 0, policy)
        log = orchestrate(made)
        assert made.loaded == [str(made.folder / "broadcasts/step_0")]
    assert "Orchestrator finished." in log
    seen: Counter[str] = Counter()
    for step in range(1, steps + 1):
        seen += check_step(made, step, steps, tokenizer) + check_rewards(made, step)
    assert seen["samples"] > 0
    assert (seen["traces"] > seen["episodes"]) == (credit == "segment")
    assert (seen["segments"] > 0) == (credit == "segment")
    counted = ", ".join(f"{count} {name}" for name, count in sorted(seen.items()))
    report(f'stage 2: credit "{credit}": {steps} steps, exit code 0; compared {counted}')


def test_the_weights_come_back(
    served: Served, policy: Path, tmp_path: Path, report: Report
) -> None:
    """Around prime-rl's loader and loss: finite losses, and every reply is from the weights that it says."""
    steps = 6
    change = {"credit": "episode", "max_steps": steps, "batch_size": 8}
    with prepared(served, tmp_path, **change) as (made, stack):
        log = tmp_path / "trainer.log"
        config = made.folder / "configs/trainer.json"
        trainer = stack.enter_context(started("tests.prime_rl.trainer", "@", config, log=log))

        def trains() -> None:
            if trainer.poll():
                raise Failed("the stand-in trainer failed", log)

        orchestrate(made, trains)
        wait_for_end(trainer, "the stand-in trainer", log, 120)
        loaded = [int(folder.rpartition("_")[2]) for folder in made.loaded]
    rows = [
        json.loads(x) for x in (made.folder / "stand_in_trainer.jsonl").read_text().splitlines()
    ]
    assert [row["step"] for row in rows] == list(range(1, steps + 1))
    assert all(math.isfinite(row["loss"]) and row["grad_norm"] > 0 for row in rows)
    assert loaded == sorted(set(loaded))
    assert loaded[0] == 0
    assert len(loaded) >= 3
    assert abs(rows[0]["mismatch_kl"]) < 1e-4  # nothing but version 0 was there
    found = _attributed(made, steps)
    assert len(found.versions) >= 2
    assert abs(found.mismatch) < 1e-4
    shown = ", ".join(f"{n} of version {v}" for v, n in sorted(found.versions.items()))
    report(f"stage 3: losses {', '.join(format(row['loss'], '.4f') for row in rows)}")
    report(
        f"stage 3: mismatch at step 1 {rows[0]['mismatch_kl']:.1e}; all samples, each with the "
        f"weights that it came from, {found.mismatch:.1e}"
    )
    report(
        f"stage 3: vLLM loaded {loaded}; replies: {shown}; |Δ logprob| at most {found.own:.1e}, "
        f"with the next best weights at least {found.next:.1e}"
    )


class Attributed:
    """Which weights the replies of a run came from."""

    def __init__(self) -> None:
        self.versions: Counter[int] = Counter()
        self.own, self.next = 0.0, math.inf
        self.mismatch = 0.0


def _attributed(made: Run, steps: int) -> Attributed:
    """Finds, for each reply, the version under which it has the log-probabilities that vLLM gave.

    It must be one that was live while the episode was played, and the others must be ten times as far.
    """
    found = Attributed()
    models = _models(made, steps)
    total, tokens = 0.0, 0
    for step in range(1, steps + 1):
        spans = _spans(made, step)
        for sample in shipped(made, step):
            logprobs = [_logprobs(model, sample) for model in models]
            for turn in sample.turns():
                far = [_distance(each, sample.logprobs, turn) for each in logprobs]
                best, *others = sorted(range(len(far)), key=far.__getitem__)
                first, last = spans[tuple(sample.token_ids)]
                assert first <= best <= last
                assert far[best] * 10 < far[others[0]]
                found.versions[best] += 1
                found.own = max(found.own, far[best])
                found.next = min(found.next, far[others[0]])
                ratios = [logprobs[best][i] - sample.logprobs[i] for i in turn]
                total += math.fsum(math.exp(r) - r - 1 for r in ratios)
                tokens += len(ratios)
    found.mismatch = total / tokens
    return found


def _spans(made: Run, step: int) -> dict[tuple[int, ...], tuple[int, int]]:
    """For each shipped sample's tokens, the versions that were live while its episode was played."""
    found: dict[tuple[int, ...], tuple[int, int]] = {}
    for episode in read_episodes(made, step, "effective"):
        span = episode["run"]["work"]["policy"]
        for trace in episode["traces"]:
            key = tuple(as_sample(trace, 0.0).token_ids)
            first, last = found.get(key, (span["start"], span["end"]))
            found[key] = (min(first, span["start"]), max(last, span["end"]))
    return found


def _distance(logprobs: Sequence[float], sampled: Sequence[float], turn: range) -> float:
    return math.fsum(abs(logprobs[i] - sampled[i]) for i in turn) / len(turn)


def _models(made: Run, steps: int) -> list[Any]:
    import torch
    from transformers import AutoModelForCausalLM

    folders = [made.folder / f"broadcasts/step_{version}" for version in range(steps + 1)]
    return [
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        for folder in folders
    ]


def _logprobs(model: Any, sample: Sample) -> list[float]:
    """By plain transformers: each token's log-probability after those before it."""
    import torch

    ids = torch.tensor(sample.token_ids)
    with torch.inference_mode():
        logits = model(input_ids=ids[None]).logits[0, :-1].float()
    values = logits.log_softmax(-1).gather(-1, ids[1:, None]).squeeze(-1).tolist()
    return [0.0, *values]
