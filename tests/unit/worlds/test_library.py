"""Looking up papers: only on hosts that the task opens; against a real server on loopback."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest

from air.formats import ToolCall
from air.sandbox.base import Box
from air.worlds.tools import Tools, ToolSettings

PAPERS = [
    {"title": "Trees", "year": 1984, "abstract": "Split.", "url": "http://h/1"},
    {"title": "Forests", "year": 2001, "abstract": None, "url": "http://h/2"},
]
PDF = b"""%PDF-1.1
1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj
2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj
3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 200 200]/Contents 4 0 R/Resources<</Font<</F 5 0 R>>>>>>endobj
4 0 obj<</Length 40>>stream
BT /F 12 Tf 20 100 Td (Hello paper) Tj ET
endstream endobj
5 0 obj<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>endobj
trailer<</Root 1 0 R>>
"""


class Handler(BaseHTTPRequestHandler):
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        where = urlsplit(self.path)
        if where.path == "/paper.pdf":
            return self.answer(200, PDF)
        if where.path != "/search":
            return self.answer(404, b"no")
        query = parse_qs(where.query)
        if query["query"] == ["odd"]:
            return self.answer(200, b"[1]")
        found = [] if query["query"] == ["nothing"] else PAPERS[: int(query["limit"][0])]
        return self.answer(200, json.dumps({"data": found}).encode())

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    Handler.asked.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


async def ask(box: Box, hosts: tuple[str, ...], url: str, name: str, *args: str) -> str:
    settings = ToolSettings(hosts=hosts, search_url=f"{url}/search")
    return (await Tools(box, settings).call(ToolCall(name, args))).text


async def test_papers_are_found_where_the_task_opens_the_host(box: Box, url: str) -> None:
    here = ("127.0.0.1",)
    found = await ask(box, here, url, "literature_search", "trees & more")
    assert found == "1. Trees (1984) http://h/1\nSplit.\n\n2. Forests (2001) http://h/2"
    assert await ask(box, here, url, "literature_search", "trees", "1") == (
        "1. Trees (1984) http://h/1\nSplit."
    )
    assert await ask(box, here, url, "literature_search", "nothing") == "Nothing was found."
    assert "cannot be read" in await ask(box, here, url, "literature_search", "odd")
    assert "no number" in await ask(box, here, url, "literature_search", "x", "99")


async def test_nothing_is_asked_of_a_host_that_the_task_does_not_open(box: Box, url: str) -> None:
    assert "not on offer" in await ask(box, (), url, "literature_search", "x")
    assert "not on offer" in await ask(box, (), url, "parse_pdf_url", f"{url}/paper.pdf")
    other = ("example.org",)
    assert "not on offer" in await ask(box, other, url, "literature_search", "x")
    for where in (f"{url}/paper.pdf", "file:///etc/passwd", "http://[", "example.org/x"):
        assert "not on a host that this task opens (example.org)" in await ask(
            box, other, url, "parse_pdf_url", where
        )
    assert Handler.asked == []


async def test_what_cannot_be_had_is_told(box: Box, url: str) -> None:
    here = ("127.0.0.1",)
    assert "404" in await ask(box, here, url, "parse_pdf_url", f"{url}/other.pdf")
    if not shutil.which("pdftotext"):
        said = await ask(box, here, url, "parse_pdf_url", f"{url}/paper.pdf")
        assert "pdftotext" in said


@pytest.mark.skipif(not shutil.which("pdftotext"), reason="there is no pdftotext here")
async def test_the_text_of_a_pdf(box: Box, url: str) -> None:
    assert "Hello paper" in await ask(box, ("127.0.0.1",), url, "parse_pdf_url", f"{url}/paper.pdf")


def test_the_tools_are_offered_by_what_the_task_opens() -> None:
    assert ToolSettings(hosts=("api.semanticscholar.org", "arxiv.org")).offered == (
        "literature_search",
        "parse_pdf_url",
    )
    assert ToolSettings(hosts=("arxiv.org",)).offered == ("parse_pdf_url",)
    assert ToolSettings().offered == ()
