"""The programs of MLGym's graders: values sent between processes, and language models under torchrun."""

from __future__ import annotations

import importlib.util
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from air import tasks
from air.tasks.data import prepare
from air.tasks.sources.mlgym.checkout_files import PROGRAMS
from tests.unit.tasks.mlgym.tree import make_tree

pytestmark = pytest.mark.slow

VALUES = runpy.run_path(str(PROGRAMS / "mlgym_values.py"))


@pytest.mark.parametrize(
    "value",
    [
        *(0, -1.5, True, None, "ä\n", 10**30, [], (), {}),
        *([1, [2]], (1, (2.0, "x")), {"a": (1,), 2: [3]}),
        *(np.int64(3), np.float32(0.1), np.bool_(True), [np.uint8(7)]),
    ],
)
def test_values_arrive_as_what_they_are(value: Any) -> None:
    text = VALUES["dumps"](value)
    assert "\n" not in text
    arrived = VALUES["loads"](text)
    assert type(arrived) is type(value)
    assert arrived == value


def test_arrays_arrive_as_arrays() -> None:
    given = np.arange(6, dtype="int32").reshape(2, 3)
    arrived = VALUES["loads"](VALUES["dumps"](given))
    assert arrived.dtype == given.dtype
    assert (arrived == given).all()


def test_a_subclass_arrives_as_what_it_is_made_of() -> None:
    class Odd(int):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = int.__hash__

    arrived = VALUES["loads"](VALUES["dumps"](Odd(5)))
    assert type(arrived) is int
    assert arrived != 0


@pytest.mark.parametrize("value", [object(), {1, 2}, b"x", np.array(["a"]), print])
def test_other_things_are_not_sent(value: Any) -> None:
    with pytest.raises(TypeError, match="cannot be sent"):
        VALUES["dumps"](value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"call": []}',
        '{"number": ["object", 1]}',
        '{"tuple": 1}',
        "{}",
        '{"a": 1, "b": 2}',
    ],
)
def test_other_texts_are_no_values(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 — JSON's own error too
        VALUES["loads"](text)


def grade(root: Path, place: Path, name: str, files: dict[str, bytes]) -> tuple[int, Any]:
    """Runs the grader as a grader box does, without a second user."""
    for file, data in files.items():
        (place / "artefact" / file).parent.mkdir(parents=True, exist_ok=True)
        (place / "artefact" / file).write_bytes(data)
    script = prepare(tasks.load(f"mlgym:{name}", mlgym_root=root)).grader / "grade.py"
    options = ["--artefact", "artefact", "--split", "val", "--seed", "0", "--out", "out.json"]
    env = {key: text for key, text in os.environ.items() if key != "AIR_SECOND_UID"}
    done = subprocess.run(
        [sys.executable, str(script), *options],
        cwd=place,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 3), done.stderr
    return done.returncode, json.loads((place / "out.json").read_text())


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize(
    ("loss", "code", "said"),
    [
        ("4.0 - weight", 0, {"metrics": {"val_loss": 2.5}}),
        ("[os._exit(0), print('{\"val_loss\": 0.1}')]", 3, None),
    ],
)
def test_a_language_model_is_evaluated_by_torchrun(
    tmp_path: Path, loss: str, code: int, said: Any
) -> None:
    """One process for each GPU that the table gives it; the metrics are of the first."""
    root = make_tree(tmp_path / "checkout")
    (tmp_path / "box").mkdir()
    baseline = f"import os\ndef loss(weight):\n    return {loss}\n".encode()
    files = {"baseline.py": baseline, "model.txt": b"1.5"}
    ended = grade(root, tmp_path / "box", "words", files)
    assert ended[0] == code
    if said is None:
        assert "did not come to its end" in ended[1]["message"]
    else:
        assert ended[1] == said


EVALUATOR = runpy.run_path(str(PROGRAMS / "evaluator.py"))


def test_random_numbers_follow_from_the_key_alone() -> None:
    """Draws of the functions that scripts use; the numbers of another key are others."""

    def draws(key: bytes) -> list[object]:
        keyed = EVALUATOR["KeyedRandom"](key)
        return [
            *(
                keyed.random(),
                keyed.randint(0, 10**6),
                keyed.choice(range(10**6)),
                keyed.gauss(0, 1),
            ),
            *(keyed.sample(range(10**6), 3), keyed.getrandbits(200_000), keyed.uniform(2, 3)),
        ]

    assert draws(b"one") == draws(b"one")
    assert all(a != b for a, b in zip(draws(b"one"), draws(b"two"), strict=True))


def test_random_numbers_are_spread_evenly() -> None:
    keyed = EVALUATOR["KeyedRandom"](b"key")
    numbers = [keyed.random() for _ in range(20_000)]
    assert all(0 <= number < 1 for number in numbers)
    assert abs(np.mean(numbers) - 0.5) < 0.01  # five standard deviations
    assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 0.04
    assert {keyed.randrange(6) for _ in range(200)} == set(range(6))


def test_a_script_that_seeds_gets_numbers_of_its_key() -> None:
    one, two = (EVALUATOR["KeyedRandom"](key) for key in (b"one", b"two"))
    first = []
    for keyed in (one, one, two):
        keyed.seed(42)
        first.append(keyed.random())
    assert first[0] == first[1] != first[2]
    with pytest.raises(NotImplementedError):
        one.getstate()
