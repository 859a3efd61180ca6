"""Splits CIFAR-10 into train, validation and test; runs on the host, never in a box.

Reads the published archive (see `[[data.downloads]]` in task.toml) from the folder `AIR_DOWNLOADS`. Writes
for the agent `train_images.npy`, `val_images.npy`, `test_images.npy` (uint8, n x 32 x 32 x 3) and
`train_labels.npy` (uint8, n), and for the grader `val.csv` and `test.csv` (`id,label`; ids
val0, val1, … and test0, …).
"""

from __future__ import annotations

import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
VAL_OF_A_CLASS = 500
BATCHES = [f"data_batch_{number}" for number in range(1, 6)]


def prepare(agent_dir: Path, grader_dir: Path, split_seed: int) -> None:
    """Writes both folders' files; the same seed gives the same bytes. The published test set stays the test
    set; validation has as many images of each class, drawn by the seed from the published training set."""
    archive = Path(os.environ["AIR_DOWNLOADS"]) / "cifar-10-python.tar.gz"
    images, labels = read(archive, BATCHES)
    test_images, test = read(archive, ["test_batch"])
    rng = np.random.default_rng(split_seed)
    order = rng.permutation(len(labels))
    val = np.concatenate([order[labels[order] == k][:VAL_OF_A_CLASS] for k in range(10)])
    val = rng.permutation(val)
    train = np.setdiff1d(order, val)
    shuffled = rng.permutation(len(test))  # its published order would tell the labels
    np.save(agent_dir / "train_images.npy", images[train])
    np.save(agent_dir / "train_labels.npy", labels[train])
    np.save(agent_dir / "val_images.npy", images[val])
    np.save(agent_dir / "test_images.npy", test_images[shuffled])
    for split, answers in (("val", labels[val]), ("test", test[shuffled])):
        lines = ["id,label", *(f"{split}{number},{label}" for number, label in enumerate(answers))]
        (grader_dir / f"{split}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def read(archive: Path, batches: list[str]) -> tuple[Bytes, Bytes]:
    """Images (n x 32 x 32 x 3) and labels (n) of some batches.

    A batch is a pickle: it is read only because the archive's checksum was compared with the published one.
    """
    images, labels = [], []
    with tarfile.open(archive) as tar:
        for name in batches:
            member = tar.extractfile(f"cifar-10-batches-py/{name}")
            if member is None:
                raise ValueError(f"{archive.name}: {name} is no file")
            batch = pickle.load(member, encoding="bytes")
            images.append(batch[b"data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
            labels += batch[b"labels"]
    return np.ascontiguousarray(np.concatenate(images)), np.array(labels, np.uint8)
