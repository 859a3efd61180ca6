"""Implements the command `air tasks rows:PATH`, which examines a data file of rows (questions with answers).
It lists the rows, and the questions that leak: those of the validation split that also occur in the training
split."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from air.cli.output import print_columns

if TYPE_CHECKING:
    from air.worlds.rows.leakage import Leakage, Pair
    from air.worlds.rows.reading import Row
    from air.worlds.rows.splits import Split

_WIDTH = 72


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "rows",
        metavar="ROWS",
        help="a file of rows, or of their settings (.toml); also as rows:PATH#KEY=VALUE",
    )
    parser.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="keep only rows with this value, or one of VALUE,VALUE; repeat it for further fields",
    )
    parser.add_argument(
        "--split", choices=("train", "validation"), help="list only the rows of this split"
    )
    parser.add_argument("--limit", type=int, default=10, help="the most rows to list (10)")
    parser.add_argument(
        "--to",
        type=Path,
        metavar="DIR",
        help="write the rows of each split to DIR/train.jsonl and DIR/validation.jsonl",
    )
    parser.add_argument(
        "--without-leaks",
        action="store_true",
        help="leave out rows for training that leak questions of validation",
    )


def run(args: argparse.Namespace) -> int:
    """Prints the number of rows in each split and with each field, the validation questions that also occur
    (exactly or almost) in the training split, and the first questions. With `--to`, also writes the rows to
    files. Returns the exit code 0."""
    from air.errors import ConfigError
    from air.worlds.rows import settings
    from air.worlds.rows.leakage import find, without_leaks
    from air.worlds.rows.source import files_of, split

    if args.limit < 0:
        raise ConfigError("must be 0 or more", where="--limit")
    if any("=" not in each for each in args.where):
        raise ConfigError("must be FIELD=VALUE", where="--where")
    name = args.rows.removeprefix("rows:")
    conditions = "&".join(f"where.{each}" for each in args.where)
    mark = "" if not conditions else "&" if "#" in name else "#"
    chosen, folder = settings.of(f"{name}{mark}{conditions}", args.rows)
    rows = split(chosen, files_of(chosen, folder))
    if args.without_leaks:
        rows = {**rows, "train": without_leaks(rows["train"], rows["validation"])}
    leakage = find(rows["train"], rows["validation"])
    _print_counts(rows)
    _print_leakage(leakage, args.limit)
    _print_rows(rows, args.split, args.limit)
    if args.to is not None:
        _write(rows, args.to)
    return 0


def _print_counts(rows: Mapping[Split, Sequence[Row]]) -> None:
    total = sum(map(len, rows.values()))
    counts = [(split, str(len(of)), f"{len(of) / max(1, total):.1%}") for split, of in rows.items()]
    print_columns([("split", "rows", "share"), *counts])
    fields: dict[str, int] = {}
    for row in (row for of in rows.values() for row in of):
        for name in row.fields:
            fields[name] = fields.get(name, 0) + 1
    print()
    print_columns([("field", "rows"), *((name, str(count)) for name, count in fields.items())])


def _print_leakage(leakage: Leakage, limit: int) -> None:
    from air.worlds.rows.leakage import MOST_COMPARED, NEAR

    print(
        f"\nleakage: {len(leakage.equal)} questions of validation are also in training, and"
        f" {len(leakage.near)} almost (similarity of at least {NEAR:g})"
    )
    if leakage.crowded:
        print(
            f"  {leakage.crowded} questions were compared with {MOST_COMPARED} similar ones only,"
            " and may be almost in training too"
        )
    for pair in (*leakage.equal, *leakage.near)[:limit]:
        print(f"  {_pair(pair)}")


def _pair(pair: Pair) -> str:
    places = f"{pair.held_out.where} ~ {pair.training.where}"
    return f"{places} ({pair.similarity:.2f}): {_line(pair.held_out.question)}"


def _print_rows(rows: Mapping[Split, Sequence[Row]], split: Split | None, limit: int) -> None:
    chosen = [
        (row.where, name, _line(row.question))
        for name, of in rows.items()
        if split in (None, name)
        for row in of[:limit]
    ][:limit]
    if chosen:
        print()
        print_columns([("row", "split", "question"), *chosen])


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 1]}…"


def _write(rows: Mapping[Split, Sequence[Row]], folder: Path) -> None:
    from air.paths import write_whole

    print()
    for split, of in rows.items():
        lines = "".join(
            f"{json.dumps(row.fields, ensure_ascii=False, default=str)}\n" for row in of
        )
        write_whole(folder / f"{split}.jsonl", lines.encode("utf-8", "surrogatepass"))
        print(f"wrote {folder / f'{split}.jsonl'}: {len(of)} rows")
