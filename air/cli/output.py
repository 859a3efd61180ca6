"""Helpers that several commands use for their output: tables, escapes in untrusted text, and a closed
standard output."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


def safe(text: str) -> str:
    """Returns `text` with control characters replaced by escapes such as `\\x1b`, except newlines and
    tabs."""
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)


def print_columns(rows: Sequence[Sequence[str]]) -> None:
    """Prints rows as left-aligned columns with spaces between them. All rows must have the same number of
    cells."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table with the column headings `header` and one list of cells for each row: with borders on a
    terminal, otherwise with spaces between columns."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if console.is_terminal:
        table = Table(*header)
        for row in rows:
            table.add_row(*row)
        console.print(table)
        return
    print_columns([header, *rows])


def discard_output() -> None:
    """Discards all further output to standard output. Call this function after a BrokenPipeError, which
    occurs if the process that reads the output has ended, as with `| head`."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
