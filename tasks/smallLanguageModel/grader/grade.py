"""Lets a model predict hidden passages byte by byte and grades it by its bits per byte.

Exit 0: --out holds {"metrics": {"bits_per_byte": ...}}. Exit 3: it holds {"message": ...}, for the agent, and
`"remember": false` where the same files might do better on a faster machine.
"""

import argparse
import json
import math
import os
import sys
from pathlib import Path

from sandbox import BadModel, Model, read_file

HERE = Path(__file__).resolve().parent


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--artefact", type=Path, required=True)
    parser.add_argument("--split", choices=("val", "test"), required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if os.environ.get("AIR_SECOND_UID"):
        HERE.chmod(0o700)  # the model's user must not read the passages
    passages = json.loads((HERE / "data" / f"{args.split}.json").read_text(encoding="utf-8"))
    try:
        source, weights = (read_file(args.artefact / name) for name in ("model.py", "model.bin"))
        with Model(source, weights, seed=args.seed) as model:
            bits = [cost(model, passage.encode("latin-1")) for passage in passages]
    except BadModel as error:
        args.out.write_text(json.dumps({"message": str(error), "remember": error.remember}))
        return 3
    score = math.fsum(bits) / sum(map(len, passages))
    args.out.write_text(json.dumps({"metrics": {"bits_per_byte": score}}))
    return 0


def cost(model: Model, passage: bytes) -> float:
    """Bits that the model needs for one passage: each byte is told only after it was predicted."""
    model.begin()
    bits = []
    for byte in passage:
        chances = model.predict()
        total = math.fsum(chances)
        if not all(p >= 0 for p in chances) or not abs(total - 1) < 1e-3:
            raise BadModel("predict gave no probabilities: they must be 0 or more and sum to 1")
        if chances[byte] == 0:
            raise BadModel("predict gave probability 0 to a byte that came")
        bits.append(-math.log2(chances[byte] / total))
        model.tell(byte)
    return math.fsum(bits)


if __name__ == "__main__":
    sys.exit(main())
