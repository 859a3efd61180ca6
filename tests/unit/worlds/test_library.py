"""Looking up papers: only on hosts that the task opens; against a real server in the box."""

from __future__ import annotations

import json
import shutil

import pytest

from air.actions import ToolCall
from air.sandbox.contract.box import Box
from air.worlds.research.tools import Tools, ToolSettings

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


SERVER = """
import http.server, json, pathlib, sys, urllib.parse
papers, asked = json.loads(pathlib.Path("papers.json").read_text()), pathlib.Path("asked").open("a")

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        print(self.path, file=asked, flush=True)
        where = urllib.parse.urlsplit(self.path)
        if where.path == "/paper.pdf":
            return self.answer(200, pathlib.Path("paper.pdf").read_bytes())
        if where.path != "/search":
            return self.answer(404, b"no")
        query = urllib.parse.parse_qs(where.query)
        if query["query"] == ["odd"]:
            return self.answer(200, b"[1]")
        found = [] if query["query"] == ["nothing"] else papers[: int(query["limit"][0])]
        self.answer(200, json.dumps({"data": found}).encode())

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
pathlib.Path("port.new").write_text(str(server.server_address[1]))
pathlib.Path("port.new").rename("port")
server.serve_forever()
"""


@pytest.fixture
async def url(box: Box) -> str:
    """A server inside the box: what its tools look up, they look up from there."""
    await box.write("papers.json", json.dumps(PAPERS).encode())
    await box.write("paper.pdf", PDF)
    await box.write("server.py", SERVER.encode())
    await box.exec("python3 server.py > log 2>&1 &", timeout=60)
    assert (await box.exec("until test -s port; do sleep 0.05; done", timeout=60)).ok
    return f"http://127.0.0.1:{(await box.read('port')).decode()}"


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
    assert await box.read("asked") == b""


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
