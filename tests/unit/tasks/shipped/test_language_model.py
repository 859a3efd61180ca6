"""The language model's grader: what it counts, in which order it tells, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from math import log2
from pathlib import Path

import pytest

from air import tasks
from air.tasks.data import prepare
from air.tasks.splits import numbered
from tests import once

pytestmark = pytest.mark.slow

UNIFORM = "def predict(text):\n    return [1] * 96\n"


@pytest.fixture(scope="module", autouse=True)
def _shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Data is prepared once in a test run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIR_CACHE", str(once.cache(tmp_path_factory)))
        yield


@pytest.fixture
def cache() -> None:
    """No cache of its own for each test of this file."""


def grade(place: Path, source: str) -> tuple[int, dict[str, object]]:
    (place / "model.py").write_text(source)
    out = place / "out.json"
    script = prepare(tasks.load("languageModel")).grader / "grade.py"
    options = ["--artefact", place, "--split", "val", "--seed", "0", "--out", out]
    command = [str(part) for part in (sys.executable, "-B", script, *options)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode in (0, 3), result.stderr
    return result.returncode, json.loads(out.read_text())


def bits(place: Path, source: str) -> float:
    code, said = grade(place, source)
    assert code == 0, said
    return said["metrics"]["bits_per_character"]  # type: ignore[index, no-any-return]


def hidden(split: str = "val") -> str:
    folder = prepare(tasks.load("languageModel")).grader / "data"
    return (folder / f"{split}.txt").read_text(encoding="ascii")


@pytest.mark.parametrize("weight", ["1", "1000.0", "1e-200"])
def test_equal_weights_of_any_size_need_the_bits_of_the_alphabet(
    tmp_path: Path, weight: str
) -> None:
    source = f"def predict(text):\n    return [{weight}] * 96\n"
    assert bits(tmp_path, source) == pytest.approx(log2(96), abs=1e-9)


def test_all_weight_on_one_character(tmp_path: Path) -> None:
    """Spaces need nearly no bits, every other character those of its share of 0.0001 / 96."""
    source = "def predict(text):\n    return [0, 1] + [0] * 94\n"
    text = hidden()
    spaces = text.count(" ") / len(text)
    least = 1e-4 / 96
    expected = -spaces * log2(1 - 1e-4 + least) - (1 - spaces) * log2(least)
    assert bits(tmp_path, source) == pytest.approx(expected, abs=1e-6)


PEEKING = """
import select, time
calls = 0

def predict(text):
    global calls
    if len(text) != calls:
        raise RuntimeError("told too much or too little")
    calls += 1
    if calls < 4:
        time.sleep(0.1)
        for fd in range(64):
            try:
                ahead = fd > 2 and select.select([fd], [], [], 0)[0]
            except OSError:
                continue
            if ahead:
                raise RuntimeError("something to read ahead in %d" % fd)
    return [1] * 96
"""


def test_a_model_is_told_of_a_character_only_after_it_said_its_weights(tmp_path: Path) -> None:
    assert bits(tmp_path, PEEKING) == pytest.approx(log2(96), abs=1e-9)


def test_a_model_is_told_what_came_and_not_what_comes(tmp_path: Path) -> None:
    """All weight on the character that it was told of last is right where a character is doubled."""
    source = (
        "def predict(text):\n    last = text[-1:] or '\\n'\n    weights = [0] * 96\n"
        "    weights[0 if last == '\\n' else ord(last) - 31] = 1\n    return weights\n"
    )
    text = hidden()
    doubled = sum(a == b for a, b in zip("\n" + text, text, strict=False)) / len(text)
    least = 1e-4 / 96
    expected = -doubled * log2(1 - 1e-4 + least) - (1 - doubled) * log2(least)
    assert bits(tmp_path, source) == pytest.approx(expected, abs=1e-6)


def test_a_model_may_learn_while_it_reads(tmp_path: Path) -> None:
    source = (
        "seen = [0.1] * 96\n"
        "def predict(text):\n"
        "    if text:\n"
        "        seen[0 if text[-1] == '\\n' else ord(text[-1]) - 31] += 1\n"
        "    return seen\n"
    )
    assert 4.0 < bits(tmp_path, source) < 5.0


def test_a_model_that_draws_luck_scores_the_same_twice(tmp_path: Path) -> None:
    source = (
        "import random\ndef predict(text):\n    return [random.random() + 0.1 for _ in range(96)]\n"
    )
    assert bits(tmp_path, source) == bits(tmp_path, source)


REFUSED = {
    "negative": ("def predict(text):\n    return [2] * 95 + [-1]\n", "weights from 0 to"),
    "nan": ("def predict(text):\n    return [1] * 95 + [float('nan')]\n", "weights from 0 to"),
    "inf": ("def predict(text):\n    return [1] * 95 + [float('inf')]\n", "weights from 0 to"),
    "huge": ("def predict(text):\n    return [1e308] * 96\n", "weights from 0 to"),
    "zero": ("def predict(text):\n    return [0] * 96\n", "a sum above 0"),
    "few": ("def predict(text):\n    return [1] * 95\n", "must return 96 weights"),
    "many": ("def predict(text):\n    return [1] * 5000\n", "must return 96 weights"),
    "none": ("def predict(text):\n    pass\n", "TypeError"),
    "text": ("def predict(text):\n    return 'abc'\n", "TypeError"),
    "absent": ("x = 1\n", "defines no function predict"),
    "crash": ("def predict(text):\n    return 1 / 0\n", "failed: ZeroDivisionError"),
    "late crash": (
        "def predict(text):\n    return [1 / (200 - len(text))] * 96\n",
        "ZeroDivisionError",
    ),
    "no Python": ("def predict(\n", "SyntaxError"),
    "leaves": ("import os\nos._exit(0)\n", "ended before it was done"),
    "leaves later": (
        "import os\ndef predict(text):\n    os._exit(0)\n",
        "ended before it was done",
    ),
    "exits": ("raise SystemExit(0)\n", "SystemExit"),
    "stolen pipe": (
        "import os\n"
        "for fd in range(3, 64):\n"
        "    try: os.write(fd, b'metrics' * 100)\n"
        "    except OSError: pass\n" + UNIFORM,
        "out of turn",
    ),
    "too large": (f"# {'x' * 4_000_000}\n{UNIFORM}", "larger than 4 MB"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_broken_or_cheating_model_is_told_so(tmp_path: Path, name: str) -> None:
    source, said = REFUSED[name]
    code, found = grade(tmp_path, source)
    assert code == 3
    text = str(found["message"])
    assert len(text.splitlines()) == 1
    assert any(part in text or _found(part, text) for part in said.split("|")), text


def _found(pattern: str, text: str) -> bool:
    """Both ends of `a.*b`, in this order."""
    first, _, last = pattern.partition(".*")
    return bool(last) and last in text.partition(first)[2]


def test_what_a_model_prints_changes_nothing(tmp_path: Path) -> None:
    noisy = (
        "import os, sys\n"
        'print(\'{"metrics": {"bits_per_character": 0.0}}\', flush=True)\n'
        "os.write(1, b'P' * 769)\nos.write(2, b'x' * 200000)\n" + UNIFORM
    )
    assert bits(tmp_path, noisy) == pytest.approx(log2(96), abs=1e-9)


def test_a_model_that_is_not_there_is_told_so(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    script = prepare(tasks.load("languageModel")).grader / "grade.py"
    options = ["--artefact", tmp_path, "--split", "test", "--seed", "0", "--out", out]
    command = [str(part) for part in (sys.executable, "-B", script, *options)]
    assert subprocess.run(command, check=False).returncode == 3
    assert "model.py cannot be read" in out.read_text()


@pytest.mark.parametrize("seed", [1912, 7])
def test_no_hidden_paragraph_begins_or_ends_like_another(seed: int) -> None:
    prepared = prepare(tasks.load("languageModel").on(numbered(seed)))
    files = [
        prepared.agent / "data" / "train.txt",
        *(prepared.grader / "data" / f"{split}.txt" for split in ("val", "test")),
    ]
    assert all(15_000 <= len(file.read_text("ascii")) < 20_000 for file in files[1:])
    lines = [line for file in files for line in file.read_text("ascii").splitlines()]
    letters = ["".join(c for c in line.lower() if c.isalpha()) for line in lines]
    assert len({line[:30] for line in letters}) == len(lines)
    assert len({line[-30:] for line in letters}) == len(lines)
