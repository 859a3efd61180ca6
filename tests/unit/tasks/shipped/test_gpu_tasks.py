"""The tasks for machines with GPUs, as far as no download is needed: on small files of the right format."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import pickle
import re
import shutil
import struct
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from air import tasks
from air.tasks.data import PreparedData, prepare
from air.tasks.spec import TaskSpec
from air.tasks.splits import numbered

pytestmark = pytest.mark.slow

NAMES = ["cifar10", "fashionMnist"]
MODEL = "smallLanguageModel"
RNG = np.random.default_rng(0)


def labels(of_a_class: int) -> Any:
    return RNG.permutation(np.repeat(np.arange(10, dtype=np.uint8), of_a_class))


def idx(array: Any) -> bytes:
    head = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return gzip.compress(head + array.tobytes())


def fashion() -> dict[str, bytes]:
    files = {}
    for name, of_a_class in (("train", 520), ("t10k", 20)):
        ys = labels(of_a_class)
        files[f"{name}-labels-idx1-ubyte.gz"] = idx(ys)
        images = np.repeat(ys, 28 * 28).reshape(-1, 28, 28)  # every pixel says the class
        files[f"{name}-images-idx3-ubyte.gz"] = idx(images)
    return files


def cifar() -> dict[str, bytes]:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
            ys = labels(104)
            rows = np.repeat(ys, 3072).reshape(-1, 3072)
            batch = pickle.dumps({b"data": rows, b"labels": ys.tolist()})
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(batch)
            tar.addfile(member, io.BytesIO(batch))
    return {"cifar-10-python.tar.gz": made.getvalue()}


def text_of() -> bytes:
    words = [b"to", b"be", b"or", b"not", b"that", b"is", b"the", b"question\n"]
    return b" ".join(words[number] for number in RNG.integers(0, 8, 18_000))


@pytest.fixture
def small(tmp_path: Path, cache: Path) -> dict[str, TaskSpec]:
    """Copies of the tasks whose downloads are small, and are there."""
    found = {}
    made = (("fashionMnist", fashion()), ("cifar10", cifar()), (MODEL, {"input.txt": text_of()}))
    for name, files in made:
        folder = tmp_path / "tasks" / name
        shutil.copytree(tasks.load(name).folder, folder)
        text = (folder / "task.toml").read_text()
        for file, content in files.items():
            place = cache / "downloads" / name / file
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
            digest = hashlib.md5(content).hexdigest()
            if name == MODEL:  # nothing is published: what came first counts
                kept = place.with_name("input.txt.sha256")
                kept.write_text(hashlib.sha256(content).hexdigest())
                continue
            text, count = re.subn(rf'({file}"\nmd5 = )"\w+"', rf'\1"{digest}"', text)
            assert count == 1
        (folder / "task.toml").write_text(text)
        found[name] = tasks.load(name, [folder.parent])
    return found


def answers(prepared: PreparedData, split: str) -> list[list[str]]:
    lines = (prepared.grader / "data" / f"{split}.csv").read_text().split()
    assert lines[0] == "id,label"
    return [line.split(",") for line in lines[1:]]


@pytest.mark.parametrize("name", NAMES)
def test_what_it_needs_is_declared_with_published_checksums(name: str) -> None:
    task = tasks.load(name)
    assert (task.gpus, task.image, task.network) == (1, "air-torch", ())
    assert (tasks.load(name).folder.parents[1] / "images" / "torch" / "Dockerfile").is_file()
    assert task.data.downloads
    assert all(len(download.md5) == 32 for download in task.data.downloads)


@pytest.mark.parametrize("name", NAMES)
def test_images_and_answers_belong_together(name: str, small: dict[str, TaskSpec]) -> None:
    prepared = prepare(small[name])
    data = prepared.agent / "data"
    for split in ("val", "test"):
        images, rows = np.load(data / f"{split}_images.npy"), answers(prepared, split)
        assert [row[0] for row in rows] == [f"{split}{n}" for n in range(len(images))]
        assert [int(row[1]) for row in rows] == images.reshape(len(images), -1)[:, 0].tolist()
    train = np.load(data / "train_images.npy")
    assert np.array_equal(train.reshape(len(train), -1)[:, -1], np.load(data / "train_labels.npy"))
    shape = (28, 28) if name == "fashionMnist" else (32, 32, 3)
    assert (train.dtype, train.shape[1:]) == (np.dtype(np.uint8), shape)
    assert np.bincount([int(row[1]) for row in answers(prepared, "val")]).tolist() == [500] * 10
    assert not list(prepared.agent.rglob("*.csv"))


@pytest.mark.parametrize("name", NAMES)
def test_the_split_seed_draws_another_validation_set(
    name: str, small: dict[str, TaskSpec], monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    first, other = prepare(small[name]), prepare(small[name].on(numbered(5)))
    assert first.digest != other.digest
    shutil.rmtree(cache / "data")
    assert prepare(small[name]).digest == first.digest


@pytest.mark.parametrize("name", NAMES)
def test_the_baseline_and_the_grader(name: str, small: dict[str, TaskSpec], tmp_path: Path) -> None:
    prepared, place = prepare(small[name]), tmp_path / "work"
    shutil.copytree(prepared.agent, place)

    def grade(split: str) -> tuple[int, dict[str, Any]]:
        out = place / "out.json"
        options = ["--artefact", place, "--split", split, "--seed", "0", "--out", out]
        argv = [sys.executable, "-B", prepared.grader / "grade.py", *options]
        result = subprocess.run([str(a) for a in argv], capture_output=True, text=True, check=False)
        return result.returncode, json.loads(out.read_text())

    subprocess.run([sys.executable, "solve.py"], cwd=place, check=True)
    for split in ("val", "test"):
        assert grade(split) == (0, {"metrics": {"accuracy": pytest.approx(0.1)}})
    rows = answers(prepared, "val") + answers(prepared, "test")
    right = "".join(f"{key},{label}\n" for key, label in rows)
    submission = place / "submission.csv"
    submission.write_text("id,label\n" + right)
    assert grade("val") == (0, {"metrics": {"accuracy": 1.0}})
    for text, said in (
        (right, "must begin with the line id,label"),
        ("id,label\nval0,10\n", "'10', expected one of the classes"),
        ("id,label\nval0,nan\n", "'nan', expected one of the classes"),
        ("id,label\nval0,1\nval0,1\n", "is there twice"),
        ("id,label\nval0,1\n", "lacks 4999 of the 5000 val ids"),
    ):
        submission.write_text(text)
        code, found = grade("val")
        assert code == 3
        assert said in found["message"]


def model_scores(
    task: TaskSpec, place: Path, split: str = "val", **files: str
) -> tuple[int, dict[str, Any]]:
    for name, text in files.items():
        (place / f"{name}.py").write_text(text)
    out = place / "out.json"
    options = ["--artefact", place, "--split", split, "--seed", "0", "--out", out]
    argv = [str(a) for a in (sys.executable, "-B", prepare(task).grader / "grade.py", *options)]
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert result.returncode in (0, 3), result.stderr
    return result.returncode, json.loads(out.read_text())


def test_longer_contexts_take_fewer_bits(small: dict[str, TaskSpec], tmp_path: Path) -> None:
    task, place, scores = small[MODEL], tmp_path / "work", []
    shutil.copytree(prepare(task).agent, place)
    for order in ([], ["0"], ["2"]):
        subprocess.run([sys.executable, "solve.py", *order], cwd=place, check=True)
        code, said = model_scores(task, place)
        assert code == 0
        scores.append(said["metrics"]["bits_per_byte"])
    assert model_scores(task, place) == (code, said)
    assert scores[0] == 8.0
    assert scores == sorted(scores, reverse=True)
    assert scores[2] < scores[1] - 1 < 4


def test_hidden_passages_are_not_in_the_training_text(small: dict[str, TaskSpec]) -> None:
    prepared, other = prepare(small[MODEL]), prepare(small[MODEL].on(numbered(5)))
    train = (prepared.agent / "data" / "train.txt").read_text()
    hidden = [json.loads((prepared.grader / f"data/{s}.json").read_text()) for s in ("val", "test")]
    assert [len(part) for part in hidden] == [16, 16]
    assert not any(passage[100:200] in train for part in hidden for passage in part)
    assert prepared.digest != other.digest


BAD_MODELS = {
    "no load": ("x = 1\n", "defines no function load"),
    "crashes": ("def load(weights):\n    return lambda context: 1 / 0\n", "ZeroDivisionError"),
    "too few": ("def load(weights):\n    return lambda context: [1.0]\n", "must give 256 numbers"),
    "nan": ("def load(weights):\n    return lambda c: [float('nan')] * 256\n", "no probabilities"),
    "inf": ("def load(weights):\n    return lambda c: [float('inf')] * 256\n", "no probabilities"),
    "ones": ("def load(weights):\n    return lambda context: [1.0] * 256\n", "no probabilities"),
    "negative": (
        "def load(weights):\n    return lambda context: [-1.0] + [2 / 255] * 255\n",
        "no probabilities",
    ),
    "certain": (
        "def load(weights):\n    return lambda context: [1.0] + [0.0] * 255\n",
        "probability 0 to a byte that came",
    ),
    "leaves": ("import os\nos._exit(0)\n", "ended before it was done"),
    "talks": (
        "import os\n"
        "for fd in range(3, 64):\n"
        "    try: os.write(fd, b'8' * 9000)\n"
        "    except OSError: pass\n",
        "out of turn",
    ),
}


@pytest.mark.parametrize("kind", BAD_MODELS)
def test_a_bad_model_is_told_so(small: dict[str, TaskSpec], tmp_path: Path, kind: str) -> None:
    place = tmp_path / "work"
    place.mkdir()
    (place / "model.bin").write_bytes(b"")
    source, said = BAD_MODELS[kind]
    code, found = model_scores(small[MODEL], place, model=source)
    assert code == 3
    assert said in found["message"]


def test_a_model_without_weights_is_told_so(small: dict[str, TaskSpec], tmp_path: Path) -> None:
    code, found = model_scores(small[MODEL], tmp_path, model="x = 1\n")
    assert (code, found["message"][:27]) == (3, "model.bin cannot be read: N")
