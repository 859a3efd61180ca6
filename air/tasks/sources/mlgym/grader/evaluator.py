"""Runs MLGym's evaluation script as it is, and vouches that it came to its end.

    python evaluator.py SETTINGS

The script runs as `__main__` in its workspace. Two things are different from a call of the script itself:
where it names MLGym's workspace, it gets air's; and `random` and numpy follow from a secret key.

When it has come to its end, a line `{"token": …}` is written into the report, with the token from the
environment, and the process ends at once. In a game, the strategy's module is one of air's that passes each
call on; what is wrong with the strategy goes into the report as `fault`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import sys
import types
from pathlib import Path
from typing import Any

_BLOCK = 1 << 13
"""Bytes of random numbers that are computed at a time."""


class KeyedRandom(random.Random):
    """Random numbers from SHAKE-256 of a secret key, with the interface of `random.Random`.

    Numbers of the Mersenne Twister would give away all later ones: a strategy sees about 100000 moves.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        super().__init__(0)

    def seed(self, a: object = None, version: int = 2) -> None:
        """Starts again with the numbers that belong to the key and `a`, whose text counts."""
        self._stream = hashlib.shake_256(self._key + repr(a).encode()).digest(32)
        self._blocks, self._bytes, self._used = 0, b"", 0
        self.gauss_next = None

    def getrandbits(self, k: int) -> int:
        """Returns a number of `k` random bits."""
        count = (k + 7) // 8
        while len(self._bytes) - self._used < count:
            block = hashlib.shake_256(self._stream + self._blocks.to_bytes(8, "big"))
            self._bytes = self._bytes[self._used :] + block.digest(_BLOCK)
            self._blocks, self._used = self._blocks + 1, 0
        drawn = self._bytes[self._used : self._used + count]
        self._used += count
        return int.from_bytes(drawn, "big") >> (8 * count - k)

    def random(self) -> float:
        """Returns a number from 0 to below 1, a multiple of 2⁻⁵³."""
        return self.getrandbits(53) * 2.0**-53

    def getstate(self) -> Any:
        raise NotImplementedError("these random numbers have no state to save")

    def setstate(self, state: Any) -> None:
        raise NotImplementedError("these random numbers have no state to save")


def main() -> None:
    settings = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    report: dict[str, Any] = {"token": os.environ.pop("AIR_TOKEN")}
    os.chdir(settings["place"])
    replace_luck(bytes.fromhex(settings["key"]))
    with contextlib.suppress(ImportError):  # an image without numpy: nothing of it to seed
        import numpy

        words = hashlib.sha256(b"numpy" + bytes.fromhex(settings["key"])).digest()
        numpy.random.seed(list(memoryview(words).cast("I")))
    if settings["player"] is None:
        run(settings)
    else:
        report |= play(settings)
    sys.stdout.flush()
    said = Path(settings["report"], f"said.{os.environ.get('RANK', '0')}")
    said.write_text(json.dumps(report), encoding="utf-8")
    os._exit(0)  # whatever was registered for the end would come after the last word


def replace_luck(key: bytes) -> None:
    """Makes the functions of the module `random` use numbers that follow from the key."""
    keyed, usual = KeyedRandom(key), random._inst
    for name, function in list(vars(random).items()):
        if getattr(function, "__self__", None) is usual:
            setattr(random, name, getattr(keyed, name))
    random._inst = keyed


def play(settings: dict[str, Any]) -> dict[str, Any]:
    """Runs the script of a game; returns what is wrong with the strategy, if anything is."""
    from mlgym_strategy import BadStrategy, Strategy  # other evaluations have no copy of it

    for name in ("grading", "runner"):
        del sys.modules[name]  # the script may have modules of these names
    try:
        with Strategy(settings["player"]):
            run(settings)
    except BadStrategy as error:
        return {"fault": str(error), "remember": error.remember}
    return {}


def run(settings: dict[str, Any]) -> None:
    """Executes the script as `python SCRIPT …` would."""
    path = Path(settings["place"], settings["script"])
    source = path.read_text(encoding="utf-8").replace(settings["home"], settings["place"])
    module = types.ModuleType("__main__")
    module.__file__ = str(path)
    sys.modules["__main__"] = module
    sys.path[0] = str(path.parent)
    sys.argv = [str(path), *settings["arguments"]]
    try:
        exec(compile(source, path, "exec"), module.__dict__)
    except SystemExit as error:
        if error.code not in (None, 0):
            raise


if __name__ == "__main__":
    main()
