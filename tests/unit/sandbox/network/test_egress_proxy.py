"""The allow-list's proxy, spoken to over real sockets; its relay is in `test_port_relay.py`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from air.errors import ConfigError
from air.sandbox.network import egress_proxy
from air.sandbox.network.egress_proxy import Proxy

Head = tuple[list[str], bytes]


class Server:
    """A server that keeps what each connection said, and answers every one alike.

    Args:
        answer: sent when a head, and a body of its Content-Length, are read.
        tunnel: whether it sends back what comes after its answer.
    """

    def __init__(self, answer: bytes, *, tunnel: bool = False) -> None:
        self._answer, self._tunnel = answer, tunnel
        self.heard: list[Head] = []
        self.rest: list[asyncio.Task[bytes]] = []
        self.port = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
        sizes = [line.split(":")[1] for line in head if line.lower().startswith("content-length")]
        body = await reader.readexactly(int(sizes[0])) if sizes else b""
        self.heard.append((head, body))
        writer.write(self._answer)
        if self._tunnel:
            while data := await reader.read(1000):
                writer.write(data)
        else:
            writer.write_eof()
            self.rest.append(asyncio.create_task(reader.read()))
            await asyncio.wait(self.rest)


@asynccontextmanager
async def listening(
    handler: Callable[[asyncio.StreamReader, asyncio.StreamWriter], object],
) -> AsyncIterator[int]:
    """The port at which `handler` is served, until all it serves is over."""
    tasks = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        try:
            await handler(reader, writer)  # type: ignore[misc]
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has gone
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        if tasks:
            await asyncio.wait(tasks, timeout=60)


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"
HOME = ("127.0.0.1",)


def home(host: str, port: int) -> tuple[str, ...]:
    """Every name is this machine."""
    return HOME


async def ask(proxy: Proxy, request: bytes, *, more: bytes = b"") -> bytes:
    """All that the proxy answers to `request`; `more` is sent once an answer has begun."""
    async with listening(proxy.serve) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        answer = b""
        if more:
            answer = await reader.read(1000)
            writer.write(more)
        writer.write_eof()
        answer += await asyncio.wait_for(reader.read(), 60)
        writer.close()
        await writer.wait_closed()
        return answer


async def test_a_plain_request_is_sent_on_for_its_name_alone() -> None:
    server = Server(OK)
    async with listening(server) as port:
        proxy = Proxy([f"here.test:{port} private"], resolve=home, proxies={})
        answer = await ask(
            proxy,
            b"POST http://HERE.test.:%d/a?b HTTP/1.1\r\nHost: other.test\r\nX-A: 1\r\nX-B: 2\r\n"
            b"Connection: keep-alive, X-A\r\nProxy-Authorization: Basic c2VjcmV0\r\n"
            b"Content-Length: 3\r\n\r\nabcGET http://other.test/ HTTP/1.1\r\n\r\n" % port,
        )
        assert answer == OK
        head = [
            f"POST /a?b HTTP/1.1|Host: here.test:{port}|Content-Length: 3|Connection: close|X-B: 2"
        ]
        assert server.heard == [(head[0].split("|"), b"abc")]
        assert await server.rest[0] == b""


@pytest.mark.parametrize(("path", "sent"), [("", "/"), ("?q", "/?q"), ("/x//../y", "/x//../y")])
async def test_the_path_is_the_clients(path: str, sent: str) -> None:
    server = Server(OK)
    async with listening(server) as port:
        proxy = Proxy([f"here.test:{port} private"], resolve=home, proxies={})
        await ask(proxy, f"GET http://here.test:{port}{path} HTTP/1.0\r\n\r\n".encode())
        assert server.heard[0][0][0] == f"GET {sent} HTTP/1.0"


async def test_a_tunnel_carries_both_ways() -> None:
    server = Server(b"", tunnel=True)
    async with listening(server) as port:
        proxy = Proxy([f"here.test:{port} private"], resolve=home, proxies={})
        answer = await ask(
            proxy, b"CONNECT here.test:%d HTTP/1.1\r\n\r\n" % port, more=b"x\r\n\r\nabc"
        )
        assert answer == b"HTTP/1.1 200 Connection established\r\n\r\nabc"


async def test_who_waits_for_a_continue_gets_it() -> None:
    server = Server(OK)
    async with listening(server) as port:
        proxy = Proxy([f"here.test:{port} private"], resolve=home, proxies={})
        head = f"PUT http://here.test:{port}/ HTTP/1.1\r\nExpect: 100-continue\r\n"
        answer = await ask(proxy, f"{head}Content-Length: 2\r\n\r\n".encode(), more=b"ab")
        assert answer == b"HTTP/1.1 100 Continue\r\n\r\n" + OK
        assert server.heard[0][1] == b"ab"


LISTED = ["here.test:PORT private", "public.test:PORT", "*.below.test:PORT", "none.test:PORT"]


def elsewhere(host: str, port: int) -> list[str]:
    if host == "none.test":
        raise OSError("no such name")
    return ["1.1.1.1", "127.0.0.1"] if host == "a.below.test" else ["127.0.0.1"]


@pytest.mark.parametrize(
    ("target", "status", "said"),
    [
        ("other.test:PORT", 403, "may reach only here.test:PORT private, public.test:PORT"),
        ("localhost:PORT", 403, "may reach only"),
        ("xhere.test:PORT", 403, "may reach only"),
        ("here.test.other.test:PORT", 403, "may reach only"),
        ("below.test:PORT", 403, "may reach only"),
        ("here.test:1", 403, "may reach only"),
        ("here.test:99999", 403, "may reach only"),
        ("127.0.0.1:PORT", 403, "IP addresses are not allowed"),
        ("127.1:PORT", 403, "IP addresses are not allowed"),
        ("2130706433:PORT", 403, "IP addresses are not allowed"),
        ("0x7f000001:PORT", 403, "IP addresses are not allowed"),
        ("[::1]:PORT", 403, "IP addresses are not allowed"),
        ("[::ffff:127.0.0.1]:PORT", 403, "IP addresses are not allowed"),
        ("169.254.169.254:80", 403, "IP addresses are not allowed"),
        ("public.test:PORT", 403, "public.test resolves to an address that is not public"),
        ("a.below.test:PORT", 403, "a.below.test resolves to an address that is not public"),
        ("none.test:PORT", 502, "none.test cannot be resolved"),
    ],
)
@pytest.mark.parametrize("how", ["CONNECT {}", "GET http://{}/"])
async def test_nothing_else_is_reached(how: str, target: str, status: int, said: str) -> None:
    server = Server(OK)
    async with listening(server) as port:
        here = str(port)
        listed = [entry.replace("PORT", here) for entry in LISTED]
        proxy = Proxy(listed, resolve=elsewhere, proxies={})
        request = how.format(target.replace("PORT", here)) + " HTTP/1.1\r\n\r\n"
        head, _, body = (await ask(proxy, request.encode())).decode().partition("\r\n\r\n")
        assert head.startswith(f"HTTP/1.1 {status} air: ")
        for part in (head.splitlines()[0], body):
            assert said.replace("PORT", here) in part
        assert server.heard == []


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\0",
        b"\0\0\0\n",
        b"\x16\x03\x01\x02\x00\x01\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET http://here.test/ HTTP/2.0\r\n\r\n",
        b"GET https://here.test/ HTTP/1.1\r\n\r\n",
        b"GET http://user@here.test/ HTTP/1.1\r\n\r\n",
        b"GET http://here.test/# HTTP/1.1\r\n\r\n",
        b"GET http://here.test\\@other.test/ HTTP/1.1\r\n\r\n",
        b"GET  http://here.test/ HTTP/1.1\r\n\r\n",
        b"GET http://here.test/ HTTP/1.1\n\n",
        b"CONNECT here.test HTTP/1.1\r\n\r\n",
        b"CONNECT http://here.test/ HTTP/1.1\r\n\r\n",
        b"GET http://here.test/ HTTP/1.1\r\nA : b\r\n\r\n",
        b"GET http://here.test/ HTTP/1.1\r\nA: b\r\n folded\r\n\r\n",
        b"GET http://here.test/ HTTP/1.1\r\nA: \0\r\n\r\n",
        b"GET http://here.test/ HTTP/1.1\r\nA: b\rHost: c\r\n\r\n",
        b"GET http://here.test/ HTTP/1.1\r\nContent-Length: +1\r\n\r\nx",
        b"GET http://here.test/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx",
        b"GET http://here.test/" + b"a" * 50_000 + b" HTTP/1.1\r\n\r\n",
        b"GET http://here.test/ HTTP/1.1\r\n" + b"A: b\r\n" * 10_000 + b"\r\n",
        b"GET http://here.test/ HTTP/1.1\r\nA:" + b" " * 30_000 + b"\0\r\n\r\n",
    ],
)
async def test_garbage_is_answered_400(garbage: bytes) -> None:
    proxy = Proxy(["here.test:80 private"], resolve=home, proxies={})
    assert (await ask(proxy, garbage)).startswith(b"HTTP/1.1 400 air: ")


async def test_a_body_of_unknown_length_is_refused() -> None:
    proxy = Proxy(["here.test:80 private"], resolve=home, proxies={})
    head = b"POST http://here.test/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n"
    for more in (b"", b"Content-Length: 5\r\nConnection: transfer-encoding\r\n"):
        answer = await ask(proxy, head + more + b"\r\n0\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 411 air: ")


async def test_a_name_is_resolved_once_and_the_judged_address_is_the_one_reached() -> None:
    asked = []

    def changing(host: str, port: int) -> tuple[str, ...]:
        asked.append((host, port))
        return HOME if len(asked) == 1 else ("127.0.0.2",)

    server = Server(OK)
    async with listening(server) as port:
        proxy = Proxy([f"no-such-name.test:{port} private"], resolve=changing, proxies={})
        assert await ask(proxy, b"GET http://no-such-name.test:%d/ HTTP/1.1\r\n\r\n" % port) == OK
        assert asked == [("no-such-name.test", port)]


async def test_a_server_that_does_not_answer_is_a_502() -> None:
    async with listening(Server(OK)) as port:
        pass
    proxy = Proxy([f"here.test:{port} private"], resolve=home, proxies={})
    answer = await ask(proxy, b"CONNECT here.test:%d HTTP/1.1\r\n\r\n" % port)
    assert answer.startswith(b"HTTP/1.1 502 air: here.test cannot be reached: Connect")


# The host's own proxy

TUNNEL = b"HTTP/1.1 200 fine\r\n\r\n"


def public(host: str, port: int) -> list[str]:
    """As if a public name."""
    if host == "unknown.test":
        raise OSError("only the parent knows it")
    return ["127.0.0.1"] if host == "inside.test" else ["1.1.1.1"]


@pytest.mark.parametrize("host", ["public.test", "unknown.test"])
async def test_the_hosts_own_proxy_is_gone_through(host: str) -> None:
    parent, plain_parent = Server(TUNNEL, tunnel=True), Server(OK)
    async with listening(parent) as port, listening(plain_parent) as other:
        found = {"https": f"http://me:p%40ss@127.0.0.1:{port}/", "http": f"127.0.0.1:{other}"}
        proxy = Proxy([host], resolve=public, proxies=found)
        tunnel = await ask(proxy, f"CONNECT {host}:443 HTTP/1.1\r\n\r\n".encode(), more=b"abc")
        assert tunnel.endswith(b" established\r\n\r\nabc")
        plain = await ask(proxy, f"GET http://{host}/a HTTP/1.1\r\nX: y\r\n\r\n".encode())
        assert plain == OK
    assert [head for head, _ in parent.heard + plain_parent.heard] == [
        [
            f"CONNECT {host}:443 HTTP/1.1",
            f"Host: {host}:443",
            "Proxy-Authorization: Basic bWU6cEBzcw==",
        ],
        [f"GET http://{host}/a HTTP/1.1", f"Host: {host}", "Connection: close", "X: y"],
    ]


async def test_nothing_is_smuggled_past_a_body_to_the_hosts_own_proxy() -> None:
    parent = Server(OK)
    async with listening(parent) as port:
        proxy = Proxy(["public.test"], resolve=public, proxies={"http": f"127.0.0.1:{port}"})
        head = b"POST http://public.test/ HTTP/1.1\r\nConnection: content-length\r\n"
        smuggled = b"GET http://other.test/ HTTP/1.1\r\n\r\n"
        assert await ask(proxy, head + b"Content-Length: 3\r\n\r\nabc" + smuggled) == OK
        assert [body for _, body in parent.heard] == [b"abc"]
        assert await parent.rest[0] == b""


async def test_the_hosts_own_proxy_is_left_out_where_it_should_be() -> None:
    parent, server = Server(OK), Server(b"", tunnel=True)
    async with listening(parent) as port, listening(server) as there:
        found = {"https": f"127.0.0.1:{port}", "no": "unknown.test"}
        listed = [f"here.test:{there} private", "inside.test", "unknown.test"]
        proxy = Proxy(listed, resolve=public, proxies=found)
        refused = await ask(proxy, b"CONNECT inside.test:443 HTTP/1.1\r\n\r\n")
        assert b" 403 air: inside.test resolves to an address that is not public" in refused
        private = Proxy(listed, resolve=home, proxies=found)
        request = b"CONNECT here.test:%d HTTP/1.1\r\n\r\n" % there
        assert (await ask(private, request, more=b"x\r\n\r\nab")).endswith(b"\r\n\r\nab")
        near = await ask(proxy, b"CONNECT unknown.test:443 HTTP/1.1\r\n\r\n")
        assert b" 502 air: unknown.test cannot be resolved" in near
    assert parent.heard == []


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 407 Who are you\r\n\r\n", "407 Who are you"),
        (b"", "does not answer"),
        (b"nonsense\r\n\r\n", "nonsense"),
        (b"x" * 100_000, "does not answer"),
    ],
)
async def test_what_the_hosts_own_proxy_refuses_is_a_502(answer: bytes, said: str) -> None:
    async with listening(Server(answer)) as port:
        proxy = Proxy(["public.test"], resolve=public, proxies={"https": f"127.0.0.1:{port}"})
        found = (await ask(proxy, b"CONNECT public.test:443 HTTP/1.1\r\n\r\n")).decode()
        assert found.startswith("HTTP/1.1 502 air: this machine's own proxy ")
        assert said in found


@pytest.mark.parametrize("url", ["socks5://a:1", "https://me:hunter2@a", "http://", "http://a:b"])
def test_a_proxy_of_the_host_that_cannot_be_used_is_named(url: str) -> None:
    with pytest.raises(
        ConfigError, match=r"https_proxy \(environment\): the network of a box"
    ) as caught:
        Proxy(["example.org"], proxies={"https": url})
    assert "hunter2" not in str(caught.value)


def test_the_hosts_own_proxy_is_read_from_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(key, "socks5://a:1")
    with pytest.raises(ConfigError, match="https_proxy"):
        Proxy(["example.org"])


def test_the_machines_resolver_is_asked() -> None:
    assert set(egress_proxy.addresses("localhost", 80)) <= {"127.0.0.1", "::1"}
