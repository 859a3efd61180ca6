"""Splits Fashion-MNIST into train, validation and test; runs on the host, never in a box.

Reads the four published files (see `[[data.downloads]]` in task.toml) from the folder `AIR_DOWNLOADS`.
Writes for the agent `train_images.npy`, `val_images.npy`, `test_images.npy` (uint8, n x 28 x 28) and
`train_labels.npy` (uint8, n), and for the grader `val.csv` and `test.csv` (`id,label`; ids
val0, val1, … and test0, …).
"""

from __future__ import annotations

import gzip
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np

VAL_OF_A_CLASS = 500


def prepare(agent_dir: Path, grader_dir: Path, split_seed: int) -> None:
    """Writes both folders' files; the same seed gives the same bytes. The published test set stays the test
    set; validation has as many images of each class, drawn by the seed from the published training set."""
    source = Path(os.environ["AIR_DOWNLOADS"])
    images = read_idx(source / "train-images-idx3-ubyte.gz")
    labels = read_idx(source / "train-labels-idx1-ubyte.gz")
    rng = np.random.default_rng(split_seed)
    order = rng.permutation(len(labels))
    val = np.concatenate([order[labels[order] == k][:VAL_OF_A_CLASS] for k in range(10)])
    val = rng.permutation(val)
    train = np.setdiff1d(order, val)
    np.save(agent_dir / "train_images.npy", images[train])
    np.save(agent_dir / "train_labels.npy", labels[train])
    test = read_idx(source / "t10k-labels-idx1-ubyte.gz")
    shuffled = rng.permutation(len(test))  # its published order would tell the labels
    np.save(agent_dir / "val_images.npy", images[val])
    np.save(agent_dir / "test_images.npy", read_idx(source / "t10k-images-idx3-ubyte.gz")[shuffled])
    for split, answers in (("val", labels[val]), ("test", test[shuffled])):
        lines = ["id,label", *(f"{split}{number},{label}" for number, label in enumerate(answers))]
        (grader_dir / f"{split}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_idx(path: Path) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The array of unsigned bytes in a gzipped IDX file: two zero bytes, 8, the number of dimensions, then
    each dimension as a big-endian 32-bit number."""
    data = gzip.decompress(path.read_bytes())
    zero, kind, count = struct.unpack(">HBB", data[:4])
    if (zero, kind) != (0, 8):
        raise ValueError(f"{path.name} is no IDX file of bytes")
    shape = struct.unpack(f">{count}I", data[4 : 4 + 4 * count])
    return np.frombuffer(data, np.uint8, offset=4 + 4 * count).reshape(shape)
