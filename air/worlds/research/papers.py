"""Tools with which an agent searches for papers and reads PDFs, in tasks with network access.

Downloads run in the agent's box (the isolated place in which it works), and only from hosts that the task
lists. The container image of the task must contain the program `pdftotext`.
"""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlencode, urlsplit

from air import json_lines
from air.sandbox.contract.box import Box, ExecResult
from air.tools.workbench.file_window import whole_number
from air.worlds.base import Refusal

SEARCH_URL = "https://api.semanticscholar.org/graph/v1/paper/search"
MOST_PAPERS = 20
_PAPERS = 5
_SECONDS = 60.0
_ABSTRACT_CHARS = 1500
_FETCH = """
import os, subprocess, sys, tempfile, urllib.request
url, limit, pdf = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "pdf"
try:
    with urllib.request.urlopen(url, timeout=30) as answer:
        data = answer.read(limit + 1)
    if len(data) > limit:
        sys.exit("it has more than %d bytes" % limit)
    if pdf:
        with tempfile.NamedTemporaryFile(suffix=".pdf") as file:
            file.write(data)
            file.flush()
            sys.exit(subprocess.run(["pdftotext", "-layout", file.name, "-"]).returncode)
    sys.stdout.buffer.write(data)
except (OSError, ValueError) as error:
    sys.exit(str(error))
"""


def offered(hosts: tuple[str, ...], search_url: str = SEARCH_URL) -> tuple[str, ...]:
    """Returns the names of the tools in this module that are available in a box that may access `hosts`, a
    tuple of host names. The tools are `parse_pdf_url` if `hosts` is not empty, and `literature_search` if
    `hosts` contains the host of `search_url`."""
    search = ("literature_search",) if _is_on(search_url, hosts) else ()
    return (*search, "parse_pdf_url") if hosts else ()


class Library:
    """Searches for papers and reads PDFs from inside `box`, the isolated place in which the agent works,
    which may access the hosts named in `hosts`.

    `search_url` is the URL of a search service for papers with the API of Semantic Scholar.
    """

    def __init__(self, box: Box, hosts: tuple[str, ...], search_url: str = SEARCH_URL) -> None:
        self._box = box
        self._hosts = hosts
        self._search_url = search_url

    async def search(self, query: str, count: str = str(_PAPERS)) -> str:
        """Searches for papers. Returns a text that lists at most `count` papers, best first. `count` is the
        text of a number from 1 to 20, as the agent writes it.

        Raises Refusal if `count` is anything else, if the search host is not allowed, or if the search fails.
        """
        number = whole_number(count)
        if number is None or not 1 <= number <= MOST_PAPERS:
            raise Refusal(f"{count:.40} is no number from 1 to {MOST_PAPERS}.")
        fields = {"query": query, "limit": number, "fields": "title,year,abstract,url"}
        result = await self._fetch(
            f"{self._search_url}?{urlencode(fields, errors='replace')}", "text"
        )
        try:
            rows = await asyncio.to_thread(_rows, result.stdout, number)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise Refusal("The search gave an answer that cannot be read.") from None
        return "\n\n".join(rows) or "Nothing was found."

    async def pdf(self, url: str) -> str:
        """Downloads a PDF and returns its text. Raises Refusal if the host in `url` is not one of `hosts`, or
        if the PDF cannot be downloaded or read."""
        done = await self._fetch(url, "pdf")
        return done.text if done.stdout.strip() else "It holds no text."

    async def _fetch(self, url: str, kind: str) -> ExecResult:
        if not _is_on(url, self._hosts):
            opened = ", ".join(self._hosts) or "none"
            raise Refusal(f"{url:.200} is not on a host that this task opens ({opened}).")
        command = ["python3", "-c", _FETCH, url, "20000000", kind]
        done = await self._box.exec(command, timeout=_SECONDS, max_bytes=2_000_000)
        if not done.ok:
            why = (
                f"over {_SECONDS:g} s" if done.timed_out else done.stderr.decode("utf-8", "replace")
            )
            raise Refusal(f"{url:.200} could not be had: {why.strip()[-500:]}")
        return done


def _is_on(url: str, hosts: tuple[str, ...]) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.hostname in hosts


def _rows(answer: bytes, most: int) -> list[str]:
    papers = json_lines.decode(answer)["data"][:most]
    return [_paper(n, paper) for n, paper in enumerate(papers, start=1)]


def _paper(number: int, paper: Any) -> str:
    title, year, url = paper.get("title"), paper.get("year"), paper.get("url")
    abstract = str(paper.get("abstract") or "")[:_ABSTRACT_CHARS]
    return f"{number}. {title} ({year}) {url}\n{abstract}".rstrip()
