"""Extracts the text of a web page, without tags, scripts and styles. The running time is linear in the
page's length."""

from __future__ import annotations

import html
import re

_CHARSETS = frozenset(
    (
        *(
            "utf-8",
            "us-ascii",
            "iso-8859-1",
            "iso-8859-15",
            "windows-1252",
            "windows-1251",
            "koi8-r",
        ),
        *("shift_jis", "euc-jp", "gb2312", "gbk", "gb18030", "big5", "euc-kr", "utf-16"),
    )
)
"""The accepted charsets. Python knows further ones, but decoding some of them is slow."""
_TAG = re.compile(r"</?([A-Za-z][A-Za-z0-9]*)")
_SKIPPED = frozenset(["script", "style", "noscript", "template", "svg", "head"])
_BLOCKS = frozenset(
    (
        *(
            "p",
            "div",
            "br",
            "li",
            "ul",
            "ol",
            "tr",
            "table",
            "section",
            "article",
            "header",
            "footer",
        ),
        *(
            "h1",
            "h2",
            "h3",
            "h4",
            "h5",
            "h6",
            "pre",
            "blockquote",
            "dt",
            "dd",
            "nav",
            "main",
            "figure",
        ),
    )
)


def decoded(data: bytes, charset: str) -> str:
    """Decodes bytes as text, with UTF-8 if the charset is not in `_CHARSETS`. Invalid bytes are replaced."""
    return data.decode(charset if charset in _CHARSETS else "utf-8", "replace")


def text_of(page: str) -> str:
    """Returns the text of an HTML page without tags. Each block element, such as a paragraph, begins a new
    line; empty lines are left out."""
    parts: list[str] = []
    place = 0
    while (start := page.find("<", place)) >= 0:
        parts.append(page[place:start])
        place = _after(page, start, parts)
    parts.append(page[place:])
    lines = (" ".join(line.split()) for line in html.unescape("".join(parts)).splitlines())
    return "\n".join(line for line in lines if line)


def _after(page: str, start: int, parts: list[str]) -> int:
    """Handles the `<` at index `start` of `page`. Skips the tag, comment or ignored element (such as a
    script) that begins there, and returns the index after it. Appends to `parts` the text that replaces what
    was skipped: a line feed for the tag of a block element, `<` if no tag begins there, nothing in the other
    cases."""
    if page.startswith("<!--", start):
        return _end(page, "-->", start + 4)
    tag = _TAG.match(page, start)
    if tag is None:
        if page.startswith(("<!", "<?"), start):
            return _end(page, ">", start)
        parts.append("<")
        return start + 1
    name = tag[1].lower()
    if name in _SKIPPED and page[start + 1] != "/":
        closing = re.compile(f"</{name}", re.IGNORECASE).search(page, tag.end())
        return _end(page, ">", closing.end()) if closing else len(page)
    if name in _BLOCKS:
        parts.append("\n")
    return _end(page, ">", tag.end())


def _end(page: str, mark: str, start: int) -> int:
    place = page.find(mark, start)
    return place + len(mark) if place >= 0 else len(page)
