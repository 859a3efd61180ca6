"""Lets a model predict hidden passages byte by byte and grades it by its bits per byte."""

import json
import math
import sys
from array import array
from collections.abc import Callable
from pathlib import Path

from grading import DATA, BadArtefact, read_bytes, run
from runner import Limits, Runner

LIMITS = Limits(
    seconds=840,  # below grade_seconds of task.toml
    cpu_seconds=None,  # a model may use all cores of the box until then
    memory_mb=None,  # PyTorch reserves more addresses than memory; the box limits the memory
    open_files=1024,
    processes=256,  # threads; below `pids` of task.toml, so that the grader can always start its own
    source_bytes=1_000_000,
)


def grade(artefact: Path, split: str, seed: int) -> dict[str, float]:
    passages = json.loads((DATA / f"{split}.json").read_text(encoding="utf-8"))
    model, weights = artefact / "model.py", read_bytes(artefact / "model.bin")
    with Runner(model, "load", seed=seed, limits=LIMITS, protocol=predictions) as runner:
        bits = [cost(runner, weights, passage.encode("latin-1")) for passage in passages]
    return {"bits_per_byte": math.fsum(bits) / sum(map(len, passages))}


def predictions(
    load: Callable[[bytes], Callable[[bytes], list[float]]],
) -> Callable[[bytes], bytes]:
    """Runs in the player: the first request holds the weights, the second is empty, and each further one
    holds the byte that came. All but the first are answered with the probabilities of the next byte."""
    from array import array

    predict = None
    context = bytearray()

    def answer(request: bytes) -> bytes:
        nonlocal predict
        if predict is None:
            predict = load(request)
            return b""
        context.extend(request)
        return array("d", [float(p) for p in predict(bytes(context))]).tobytes()

    return answer


def cost(runner: Runner, weights: bytes, passage: bytes) -> float:
    """Bits that the model needs for one passage: each byte is told only after it was predicted. The model is
    loaded afresh, so that it learns nothing from the passages before."""
    runner.load()
    runner.ask(weights)
    bits, before = [], b""
    for byte in passage:
        chances = array("d", checked(runner.ask(before)))
        total = math.fsum(chances)
        if not all(p >= 0 for p in chances) or not abs(total - 1) < 1e-3:
            raise BadArtefact("predict gave no probabilities: they must be 0 or more and sum to 1")
        if chances[byte] == 0:
            raise BadArtefact("predict gave probability 0 to a byte that came")
        bits.append(-math.log2(chances[byte] / total))
        before = bytes([byte])
    return math.fsum(bits)


def checked(answer: bytes) -> bytes:
    """The answer, if it holds a number for every byte."""
    if len(answer) != 8 * 256:
        raise BadArtefact("predict must give 256 numbers")
    return answer


if __name__ == "__main__":
    sys.exit(run(grade))
