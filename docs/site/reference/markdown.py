"""Renders sections of rows as Markdown pages of tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Row:
    """One key, flag or field."""

    name: str
    type: str
    default: str
    meaning: str
    engine: str = ""


@dataclass
class Section:
    """A table of rows under a heading."""

    title: str
    text: str = ""
    path: str = ""
    """The table's path in its file."""
    rows: list[Row] = field(default_factory=list)


def sentence(text: str) -> str:
    """A help text as a sentence: capitalised, with a full stop."""
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", ":", "!")) else ".")


def cell(text: str) -> str:
    """A text as a cell of a table: on one line, with `|` escaped."""
    return " ".join(text.split()).replace("|", "\\|")


def table(columns: Sequence[str], rows: Sequence[Row], *, code: bool = True) -> list[str]:
    """The lines of a table."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for row in rows:
        name = f"`{row.name}`" if code else row.name
        cells = [name, row.type, row.default, row.meaning, row.engine][: len(columns)]
        lines.append("| " + " | ".join(cell(one) for one in cells) + " |")
    return [*lines, ""]


def page(
    title: str,
    text: str,
    chapters: Sequence[tuple[str, Sequence[Section]]],
    *,
    columns: Sequence[str],
) -> str:
    """A page of tables."""
    lines = [f"# {title}", "", text, ""]
    for name, sections in chapters:
        lines += [f"## {name}", ""]
        for section in sections:
            lines += [f"### {section.title}", ""]
            if section.text:
                lines += [section.text, ""]
            lines += table(columns, section.rows)
    return "\n".join(lines) + "\n"
