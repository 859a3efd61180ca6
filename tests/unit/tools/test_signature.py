"""The schema of a tool comes from its signature and docstring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Optional

import pytest

from air.errors import ConfigError
from air.tools import Tool, ToolContext, tool


def state(context: ToolContext) -> list[str]:
    return []


@tool
def book(
    title: str,
    pages: int,
    kind: Literal["novel", "poems"] = "novel",
    tags: list[str] | None = None,
    weights: dict[str, float] | None = None,
    scores: Optional[float] = 0.5,  # noqa: UP045 (the older spelling counts too)
    new: bool = False,
    other: Any = None,
) -> str:
    """Finds a book,
    wherever it is.

    It takes a while.

    Args:
        title: the title,
            or a part of it
        pages (int): the number of pages: at least one
        kind: the kind

    Returns:
        The book.
    """
    return title


def test_schema() -> None:
    assert book.schema == {
        "type": "function",
        "function": {
            "name": "book",
            "description": "Finds a book, wherever it is. It takes a while.",
            "parameters": {
                "type": "object",
                "properties": {
                    "title": {"type": "string", "description": "the title, or a part of it"},
                    "pages": {
                        "type": "integer",
                        "description": "the number of pages: at least one",
                    },
                    "kind": {
                        "type": "string",
                        "enum": ["novel", "poems"],
                        "description": "the kind",
                        "default": "novel",
                    },
                    "tags": {
                        "anyOf": [
                            {"type": "array", "items": {"type": "string"}},
                            {"type": "null"},
                        ]
                    },
                    "weights": {
                        "anyOf": [
                            {"type": "object", "additionalProperties": {"type": "number"}},
                            {"type": "null"},
                        ]
                    },
                    "scores": {"type": ["number", "null"], "default": 0.5},
                    "new": {"type": "boolean", "default": False},
                    "other": {},
                },
                "required": ["title", "pages"],
            },
        },
    }


def test_text() -> None:
    assert book.text.splitlines()[:4] == [
        "book(title, pages, [kind], [tags], [weights], [scores], [new], [other]): Finds a book, wherever it "
        "is. It takes a while.",
        "  title (string): the title, or a part of it",
        "  pages (integer): the number of pages: at least one",
        "  kind ('novel' | 'poems'): the kind",
    ]
    assert "  tags (array or null)" in book.text


def test_the_first_parameter_is_the_state() -> None:
    @tool(state=state, name="note", description="Writes a note down.", max_length=100)
    def anything(notes, text: str) -> str:  # type: ignore[no-untyped-def]
        return text

    assert isinstance(anything, Tool)
    assert (anything.name, anything.max_length) == ("note", 100)
    assert anything.description == "Writes a note down."
    assert list(anything.parameters["properties"]) == ["text"]


def test_a_tool_without_parameters_takes_none() -> None:
    @tool
    def now() -> str:
        """Tells the time."""
        return ""

    assert now.parameters == {"type": "object", "properties": {}, "additionalProperties": False}
    assert now.text == "now(): Tells the time."


def undescribed(a: str) -> str:
    return a


def untyped(a) -> str:  # type: ignore[no-untyped-def]
    """Does."""
    return str(a)


def spread(*texts: str) -> str:
    """Does."""
    return ""


def of_bytes(data: bytes) -> str:
    """Does."""
    return ""


def unknown(data: Missing) -> str:  # type: ignore[name-defined]  # noqa: F821
    """Does."""
    return ""


def numbered(data: dict[int, str]) -> str:
    """Does."""
    return ""


def misnamed(text: str) -> str:
    """Does.

    Args:
        txet: the text
    """
    return text


def no_json(text: Any = object()) -> str:  # noqa: B008
    """Does."""
    return ""


@pytest.mark.parametrize(
    ("function", "part"),
    [
        (undescribed, "'undescribed': has no description — write a docstring"),
        (untyped, "`a` has no type"),
        (spread, "cannot be given by name"),
        (of_bytes, "`data`: the type <class 'bytes'> has no JSON schema"),
        (unknown, "a type is unknown"),
        (numbered, "has no JSON schema"),
        (misnamed, "describes `txet`"),
        (no_json, "the default of `text` is no JSON value"),
    ],
)
def test_what_a_schema_cannot_come_from_is_refused(function: Callable[..., str], part: str) -> None:
    with pytest.raises(ConfigError) as raised:
        tool(function)
    assert part in str(raised.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"name": "two words"},
        {"name": "é"},
        {"max_length": 10},
        {"seconds": 0},
        {"calls_at_once": 0},
        {"pool_size": 2},
        {"pool_size": 0, "state": state},
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        tool(**{"description": "Does.", **settings})(anything)


def anything(notes: Any = None) -> str:
    return ""
