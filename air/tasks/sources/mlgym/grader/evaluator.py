"""Runs an evaluation script of MLGym, and reports whether the script ran to its end.

    python evaluator.py SETTINGS

SETTINGS is a JSON file that `grade.py` writes. The script runs as `__main__` in its workspace, as if Python
had started it, with two differences: in its source, the path of MLGym's workspace is replaced by that of
air's workspace, and the random numbers of `random` and numpy follow from a secret key.

When the script has ended, this program writes a report, a JSON object, and ends at once. The report contains
the token from the environment variable `AIR_TOKEN`, which proves that this program wrote it. If the artefact
is a strategy (a function, such as the strategy of a player in a game), the script does not import it but a
module of air that forwards each call to the strategy's own process. If the strategy is at fault, the report
says why under `fault`.
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
"""The number of random bytes that are computed at a time."""


class KeyedRandom(random.Random):
    """Computes random numbers with SHAKE-256 from a secret key; has the interface of `random.Random`.

    Python's own generator (Mersenne Twister) is not used, because all its later numbers can be computed from
    some thousand earlier ones. A strategy in a game sees enough random moves of its opponent for this.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        super().__init__(0)

    def seed(self, a: object = None, version: int = 2) -> None:
        """Restarts the sequence of random numbers. The sequence depends only on the key and on `repr(a)`."""
        self._stream = hashlib.shake_256(self._key + repr(a).encode()).digest(32)
        self._blocks, self._bytes, self._used = 0, b"", 0
        self.gauss_next = None

    def getrandbits(self, k: int) -> int:
        """Returns a random integer of `k` bits."""
        count = (k + 7) // 8
        while len(self._bytes) - self._used < count:
            block = hashlib.shake_256(self._stream + self._blocks.to_bytes(8, "big"))
            self._bytes = self._bytes[self._used :] + block.digest(_BLOCK)
            self._blocks, self._used = self._blocks + 1, 0
        drawn = self._bytes[self._used : self._used + count]
        self._used += count
        return int.from_bytes(drawn, "big") >> (8 * count - k)

    def random(self) -> float:
        """Returns a random multiple of 2⁻⁵³ that is at least 0 and below 1."""
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
    with contextlib.suppress(ImportError):  # without numpy, nothing needs a seed
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
    os._exit(0)  # skips exit handlers that the script or the artefact registered


def replace_luck(key: bytes) -> None:
    """Makes the functions of Python's module `random` use a `KeyedRandom` with the key `key`."""
    keyed, usual = KeyedRandom(key), random._inst
    for name, function in list(vars(random).items()):
        if getattr(function, "__self__", None) is usual:
            setattr(random, name, getattr(keyed, name))
    random._inst = keyed


def play(settings: dict[str, Any]) -> dict[str, Any]:
    """Runs an evaluation script that calls the agent's strategy. Returns the fields of the report that say
    why the strategy is at fault; an empty dict if it is not."""
    from mlgym_strategy import BadStrategy, Strategy  # only strategies need this module

    for name in ("grading", "runner"):
        del sys.modules[name]  # the script may have modules of these names
    try:
        with Strategy(settings["player"]):
            run(settings)
    except BadStrategy as error:
        return {"fault": str(error), "remember": error.remember}
    return {}


def run(settings: dict[str, Any]) -> None:
    """Executes the evaluation script in this process, as `python SCRIPT ARGUMENTS` would."""
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
