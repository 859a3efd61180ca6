"""The tools of the web, against a real server of this machine. Only what the run opens is reached."""

from __future__ import annotations

import gc
import json
import ssl
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from air.errors import ConfigError, InfrastructureError
from air.tools import ToolContext, ToolResult, ToolSet, load
from air.tools.web.browser import Browser, WebError
from air.tools.web.page_text import decoded, text_of

PAGE = (
    "<html><head><title>T</title><script>x<1</script></head>"
    "<body><h1>Whales</h1><p>Large &amp; wet.</p></body>"
)


class Handler(BaseHTTPRequestHandler):
    """Answers by the path."""

    asked: list[str]

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        port = self.server.server_address[1]
        pages: dict[str, tuple[int, dict[str, str], bytes]] = {
            "/page": (200, {"Content-Type": "text/html; charset=utf-8"}, PAGE.encode()),
            "/long": (200, {"Content-Type": "text/plain"}, b"0123456789" * 100),
            "/latin": (200, {"Content-Type": "text/plain; charset=iso-8859-1"}, b"caf\xe9"),
            "/picture": (200, {"Content-Type": "image/png"}, b"\x89PNG"),
            "/packed": (200, {"Content-Type": "text/plain", "Content-Encoding": "gzip"}, b"x"),
            "/loop": (302, {"Location": "/loop"}, b""),
            "/there": (302, {"Location": "/page"}, b""),
            "/inside": (302, {"Location": f"http://127.0.0.1:{port}/page"}, b""),
            "/metadata": (302, {"Location": "http://169.254.169.254/latest"}, b""),
            "/other": (302, {"Location": f"http://other.test:{port}/page"}, b""),
            "/file": (302, {"Location": "file:///etc/passwd"}, b""),
            "/busy": (503, {}, b""),
            "/refused": (400, {}, b""),
            "/strict": (400 if "odd" in parts.query else 200, {}, self._found(parts.query)),
            "/broken": (500, {}, b""),
            "/odd": (200, {"Content-Type": "application/json"}, b"[]"),
            "/fragile": self._fragile(parts.query),
            "/search": (200, {"Content-Type": "application/json"}, self._found(parts.query)),
        }
        status, headers, body = pages.get(parts.path, (404, {}, b"no"))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _fragile(self, query: str) -> tuple[int, dict[str, str], bytes]:
        """A service that each query with `down` ends for one request."""
        was_down = getattr(self.server, "down", False)
        self.server.down = "down" in query  # type: ignore[attr-defined]
        if was_down or "down" in query:
            return 502, {}, b""
        odd = "odd" in query
        return 200, {"Content-Type": "application/json"}, b"[]" if odd else self._found(query)

    def _found(self, query: str) -> bytes:
        words = parse_qs(query).get("q", [""])[0]
        key = self.headers.get("X-Key", "none")
        row = {
            "title": f"About {words}",
            "url": "https://a.test/",
            "content": f"key {key} " + "x " * 300,
        }
        return json.dumps({"data": {"results": [row, row, 3]}}).encode()

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as one:
        one.asked = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield one
        one.shutdown()
        thread.join()


async def read(
    server: ThreadingHTTPServer, path: str, start: int = 0, **settings: Any
) -> ToolResult:
    port = server.server_address[1]
    spec = {"name": "web_page", "hosts": [f"localhost:{port} private"], **settings}
    async with await ToolSet(load(spec)).open(ToolContext(seed=0)) as tools:
        url = path if "://" in path else f"http://localhost:{port}{path}"
        return await tools.call("web_page", {"url": url, "start": start})


async def test_a_page_is_read(server: ThreadingHTTPServer) -> None:
    for path in ("/page", "/there"):
        result = await read(server, path)
        assert (result.status, result.observation) == ("success", "Whales\nLarge & wet.")
    assert (await read(server, "/latin")).observation == "café"


async def test_a_long_page_is_read_in_parts(server: ThreadingHTTPServer) -> None:
    result = await read(server, "/long", page_length=100)
    assert result.observation == "0123456789" * 10 + "\n[characters 0 to 100 of 1000]"
    result = await read(server, "/long", start=950, page_length=100)
    assert result.observation == "0123456789" * 5 + "\n[characters 950 to 1000 of 1000]"
    result = await read(server, "/long", start=1001)
    assert result.status == "error"
    result = await read(server, "/long", most_bytes=1000)
    assert "[" not in result.observation


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("/none", "answers 404"),
        ("/picture", "no text, but image/png"),
        ("/packed", "is compressed"),
        ("/loop", "redirects more than 5 times"),
        ("/inside", "is not open"),
        ("/metadata", "169.254.169.254:80 is not open"),
        ("/other", "is not open"),
        ("/file", "is no address of a page"),
        ("http://127.0.0.1:1/", "is not open"),
        ("http://[::1]/", "is not open"),
        ("http://2130706433/", "is not open"),
        ("http://0x7f.1/", "is not open"),
        ("http://localhost/", "is not open"),
        ("http://localhost:1/", "is not open"),
        ("http://user:word@localhost/", "password"),
        ("file:///etc/passwd", "is no address of a page"),
        ("http://", "is no address"),
        ("http://[", "is not open"),
        ("http://a\x00b/", "is no address"),
        ("https://" + "x" * 5000, "longer than 2000"),
    ],
)
async def test_what_may_not_be_read_is_told(
    url: str, part: str, server: ThreadingHTTPServer
) -> None:
    result = await read(server, url)
    assert result.status == "error"
    assert part in result.observation
    assert "/page" not in server.asked  # type: ignore[attr-defined]


async def test_a_name_with_a_private_address_is_not_reached(server: ThreadingHTTPServer) -> None:
    """Also if the name had a public address before: the proxy connects to the address that it checked."""
    port = server.server_address[1]
    answers = iter(
        [["93.184.215.14", "127.0.0.1"], ["127.0.0.1"], ["10.0.0.1"], ["169.254.169.254"]]
    )
    browser = await Browser([f"here.test:{port}"], resolve=lambda host, port: next(answers)).open()
    try:
        for _ in range(4):
            with pytest.raises(WebError, match="answers 403"):
                await browser.get(f"http://here.test:{port}/page", 1000)
    finally:
        await browser.close()
    assert server.asked == []  # type: ignore[attr-defined]


def open_files() -> set[str]:
    """The numbers of this process's open files and sockets."""
    return {each.name for each in Path("/proc/self/fd").iterdir()}


async def test_a_browser_without_certificates_leaves_no_proxy(tmp_path: Path) -> None:
    def load_certificates() -> ssl.SSLContext:
        return ssl.create_default_context(cafile=tmp_path / "none.pem")

    gc.collect()  # so that no older socket closes meanwhile
    before = open_files()
    with pytest.raises(InfrastructureError, match=r"no certificates .*No such file"):
        await Browser(["here.test"], load_certificates=load_certificates).open()
    assert open_files() <= before


async def search(
    server: ThreadingHTTPServer, path: str, query: str = "a b&c", **more: Any
) -> ToolResult:
    port = server.server_address[1]
    url = f"http://localhost:{port}{path}?q={{query}}"
    settings = {"url": url, "private": True, "results": "data.results", "top": 2, **more}
    async with await ToolSet(load({"name": "web_search", **settings})).open(
        ToolContext(seed=0)
    ) as tools:
        return await tools.call("web_search", {"query": query})


async def test_a_search(server: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEARCH_KEY", "secret")
    result = await search(server, "/search", key_header="X-Key", key_variable="SEARCH_KEY")
    assert result.observation.startswith("[1] About a b&c\nhttps://a.test/\nkey secret x x")
    assert "[… the first 300 of 610 characters]" in result.observation
    assert result.info == {"results": 2}
    for query in ("", " ", "x" * 501):
        assert (await search(server, "/search", query)).status == "error"


async def test_whose_failure_a_failed_search_is(server: ThreadingHTTPServer) -> None:
    with pytest.raises(InfrastructureError):  # it refuses every query
        await search(server, "/refused", patience=0)
    assert "refuses this query" in (await search(server, "/strict", "odd")).observation
    for path in ("/busy", "/odd", "/broken"):
        with pytest.raises(InfrastructureError):
            await search(server, path, patience=0)
    asked: list[str] = server.asked  # type: ignore[attr-defined]
    assert len([path for path in asked if "busy" in path]) == 4
    with pytest.raises(InfrastructureError):
        await search(server, "/search", private=False, patience=0)


@pytest.mark.parametrize("query", ["take it down", "odd"])
async def test_a_query_at_which_the_service_fails_is_told(
    query: str, server: ThreadingHTTPServer
) -> None:
    result = await search(server, "/fragile", query, patience=1)
    told = (result.status, result.observation)
    assert told == ("error", "The search service fails at this query.")
    assert (await search(server, "/fragile", "after it")).status == "success"


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        ({"name": "web_page"}, "`hosts`"),
        ({"name": "web_page", "hosts": []}, "`hosts`"),
        ({"name": "web_page", "hosts": ["127.0.0.1"]}, "IP address"),
        ({"name": "web_search"}, "`url`"),
        ({"name": "web_search", "url": "https://a.test/"}, "{query}"),
        ({"name": "web_search", "url": "https://{query}.test/"}, "{query}"),
        ({"name": "web_search", "url": "ftp://a.test/{query}"}, "http://"),
        ({"name": "web_search", "url": "http://127.0.0.1/{query}"}, "IP address"),
        (
            {"name": "web_search", "url": "https://a.test/{query}", "key_variable": "NO_SUCH_KEY"},
            "NO_SUCH_KEY is not set",
        ),
    ],
)
def test_without_hosts_nothing_is_open(spec: dict[str, Any], part: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(spec)
    assert part in str(raised.value)


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("a<br>b <b>c</b>", "a\nb c"),
        ("1 < 2 and 3 > 2", "1 < 2 and 3 > 2"),
        ("a<!-- <p> -->b<!doctype x>c", "abc"),
        ("a<STYLE>x</Style >b<script>c", "ab"),
        ("&lt;p&gt; &nbsp; x", "<p> x"),
        ("a<p", "a"),
    ],
)
def test_the_text_of_a_page(page: str, expected: str) -> None:
    assert text_of(page) == expected


@pytest.mark.parametrize(
    "piece", ["<", "<!--", "<a", "<script>", "</", "<![CDATA[", "&", "&#", "<p>", "<svg><"]
)
def test_no_page_takes_long(piece: str) -> None:
    """The slowest takes 0.2 seconds."""
    begin = time.thread_time()
    text_of(piece * (200_000 // len(piece)))
    assert time.thread_time() - begin < 5


def test_an_unknown_charset_counts_as_utf_8() -> None:
    assert decoded(b"a\xff", "punycode") == "a\ufffd"
