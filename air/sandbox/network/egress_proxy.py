"""The egress proxy: an HTTP proxy on the host, through which the commands of a box reach the hosts that
`BoxSpec.network` allows. The box has no other network.

The proxy serves `CONNECT` requests (tunnels) and plain `http://` requests, one request per connection. It
resolves host names itself, and connects only to addresses that it has checked. If the host has its own proxy
(`https_proxy`), connections to public addresses go through that proxy. Limits: the egress proxy cannot see
the content of a tunnel, and the body of a plain request must have a Content-Length.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
from base64 import b64encode
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from urllib.parse import unquote, urlsplit

from air.errors import ConfigError
from air.sandbox.contract import network_rules
from air.sandbox.wire import port_relay

PORT = 3128
"""The loopback port at which commands in a box reach the egress proxy."""
HEAD_BYTES = 1 << 15
HEAD_SECONDS, CONNECT_SECONDS, IDLE_SECONDS = 20.0, 20.0, 300.0
_RESOLVING_AT_ONCE, _ADDRESSES_TRIED, _DISCARD_BYTES = 4, 4, 1 << 20
_TOKEN = rb"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
_REQUEST = re.compile(rb"(%s) ([!-~]+) (HTTP/1\.[01])" % _TOKEN)
_HEADER = re.compile(rb"(%s):([\t\x20-\x7e\x80-\xff]*)" % _TOKEN)
_AUTHORITY = r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.%]+\])"
_TUNNEL = re.compile(rf"{_AUTHORITY}:([0-9]{{1,5}})")
_ADDRESS = re.compile(rf"(?i:http)://{_AUTHORITY}(?::([0-9]{{1,5}}))?([/?][^#]*)?")
_HOP = {
    *("connection", "proxy-connection", "keep-alive", "te", "trailer", "upgrade", "host", "expect"),
    *("proxy-authorization", "proxy-authenticate", "content-length"),
}

Resolve = Callable[[str, int], Sequence[str]]


def environment() -> dict[str, str]:
    """Returns environment variables, such as `http_proxy`, that make commands in a box use the egress
    proxy."""
    there = f"http://127.0.0.1:{PORT}"
    variables = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), there)
    return variables | dict.fromkeys(("no_proxy", "NO_PROXY"), "localhost,127.0.0.1,::1")


class Refusal(Exception):
    """The error that is raised if the egress proxy refuses a request from a box. The client in the box gets
    the HTTP `status` and the error's message."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True)
class Request:
    """The parsed head of one HTTP request: its request line and headers, without the body."""

    method: str
    host: str
    port: int
    path: str
    """The path and query of a plain `http://` request. Empty for a `CONNECT` request, which opens a
    tunnel."""
    version: str
    headers: tuple[tuple[bytes, bytes], ...] = ()
    length: int | None = None
    """The length of the body in bytes; None if the client sends no Content-Length header."""
    expects: bool = False
    """Whether the client waits for `100 Continue` before it sends the body."""

    @property
    def authority(self) -> str:
        """The server of the request as `HOST:PORT`; only `HOST` for a plain `http://` request to port 80."""
        return self.host if self.port == 80 and self.path else f"{self.host}:{self.port}"

    def head(self, authorization: str | None = None, *, absolute: bool = False) -> bytes:
        """Returns the request line and headers as bytes, to be sent to the next server. They contain
        `Connection: close`, so that the connection serves only one request.

        `authorization` is the value of the header Proxy-Authorization (None: no such header). If `absolute`
        is true, the request line contains the whole URL, as a proxy expects.
        """
        target = f"http://{self.authority}{self.path}" if absolute else self.path
        lines = [f"{self.method} {target} {self.version}", f"Host: {self.authority}"]
        lines += [f"Content-Length: {self.length}"] if self.length is not None else []
        lines += [f"Proxy-Authorization: {authorization}"] if authorization else []
        own = "\r\n".join([*lines, "Connection: close", ""]).encode("latin-1")
        return own + b"".join(b"%s: %s\r\n" % pair for pair in self.headers) + b"\r\n"


def parse(lines: Sequence[bytes]) -> Request:
    """Parses the head of an HTTP request. `lines` are the request line and the header lines, without line
    ends. Raises Refusal if they are not a valid request to a proxy."""
    first = _REQUEST.fullmatch(lines[0]) if lines else None
    if first is None:
        raise Refusal(400, "this is an HTTP proxy, and that is no request")
    method, target, version = (part.decode("ascii") for part in first.groups())
    match = (_TUNNEL if method == "CONNECT" else _ADDRESS).fullmatch(target)
    if match is None:
        raise Refusal(400, "this is a proxy: ask for http://NAME/… or CONNECT NAME:PORT")
    path = "" if method == "CONNECT" else match[3] or "/"
    path = f"/{path}" if path.startswith("?") else path
    request = Request(method, network_rules.normal(match[1]), int(match[2] or 80), path, version)
    headers = [_header(line) for line in lines[1:]]
    return request if method == "CONNECT" else _with(request, headers)


def _header(line: bytes) -> tuple[bytes, bytes]:
    match = _HEADER.fullmatch(line)
    if match is None:
        raise Refusal(400, "a header is malformed")
    return match[1], match[2].strip(b" \t")


def _with(request: Request, headers: list[tuple[bytes, bytes]]) -> Request:
    """Returns a copy of `request` with these `headers`, without hop-by-hop headers, which concern only one
    connection. Also sets its fields `length` and `expects`. Raises Refusal if the body is chunked, or if the
    Content-Length is malformed."""
    by_name = [(name.decode("ascii").lower(), name, value) for name, value in headers]
    if any(name == "transfer-encoding" for name, _, _ in by_name):
        raise Refusal(411, "a body needs a Content-Length here")
    lengths = [value for name, _, value in by_name if name == "content-length"]
    if len(lengths) > 1 or not all(re.fullmatch(rb"[0-9]{1,15}", value) for value in lengths):
        raise Refusal(400, "the Content-Length is malformed")
    connection = b",".join(value for name, _, value in by_name if name == "connection")
    dropped = _HOP | {part.strip().lower() for part in connection.decode("latin-1").split(",")}
    return replace(
        request,
        headers=tuple((name, value) for key, name, value in by_name if key not in dropped),
        length=int(lengths[0]) if lengths else None,
        expects=any(name == "expect" for name, _, _ in by_name),
    )


@dataclass(frozen=True)
class Parent:
    """The host's own HTTP proxy, whose address is in an environment variable. Connections from boxes to
    public addresses go through this proxy. `authorization` is the value of the header Proxy-Authorization for
    it; None if the address contains no user name."""

    host: str
    port: int
    authorization: str | None = None

    @classmethod
    def of(cls, key: str, url: str) -> Parent:
        """Returns the proxy with the address `url`, which is the value of the environment variable `key`.

        Raises ConfigError if the address is not a valid `http://` address. The message omits the address,
        which may contain a password.
        """
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            port = parts.port or 80
        except ValueError:
            parts = None
        if parts is None or parts.scheme != "http" or not parts.hostname:
            raise ConfigError(
                "the network of a box cannot go through this proxy",
                where=f"{key} (environment)",
                remedy="set it to http://HOST:PORT, or unset it",
            )
        user = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
        basic = f"Basic {b64encode(user.encode()).decode()}" if parts.username else None
        return cls(parts.hostname, port, basic)


class Proxy:
    """The egress proxy of one box. Pass its method `serve` to `Box.forward`, as the handler of a port.

    `entries` are the allowed hosts, as in `BoxSpec.network`. `resolve(host, port)` is a function that returns
    the IP addresses of a host name, and may block (None: the function `addresses`). `proxies` describes the
    host's own proxies: their addresses under the keys `http` and `https`, and under `no` the hosts that are
    reached without them, separated by commas (None: taken from environment variables). Raises ValueError if
    an entry is invalid, ConfigError if the address of a proxy cannot be used.
    """

    def __init__(
        self,
        entries: Sequence[str],
        *,
        resolve: Resolve | None = None,
        proxies: dict[str, str] | None = None,
    ) -> None:
        import urllib.request

        self._rules = [network_rules.rule(entry) for entry in entries]
        self._known = ", ".join(entries)
        self._resolve = resolve or addresses
        self._resolving = asyncio.Semaphore(_RESOLVING_AT_ONCE)
        host_proxies = urllib.request.getproxies() if proxies is None else proxies
        keys = [key for key in ("http", "https") if host_proxies.get(key)]
        self._parents = {key: Parent.of(f"{key}_proxy", host_proxies[key]) for key in keys}
        self._direct = partial(urllib.request.proxy_bypass, proxies=host_proxies)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one connection from the box: reads its HTTP request, and forwards or refuses the request.
        `reader` and `writer` are the two directions of the connection."""
        try:
            async with asyncio.timeout(HEAD_SECONDS):
                request = parse(await _lines(reader))
            far, parent = await self._reach(request)
        except Refusal as refusal:
            await self._refuse(refusal, reader, writer)
            return
        except TimeoutError:
            await self._refuse(Refusal(400, "the request did not come"), reader, writer)
            return
        async with port_relay.closing(far):
            if request.path:
                await _exchange(request, parent, (reader, writer), far)
            else:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                await port_relay.splice((reader, writer), far, idle=IDLE_SECONDS)

    async def _reach(self, request: Request) -> tuple[port_relay.Streams, Parent | None]:
        """Connects to the server of a request, directly or through the host's own proxy. Returns the
        connection, and that proxy if it is used (else None).

        Raises Refusal if the box must not reach the server, or if the connection failed.
        """
        host, port = request.host, request.port
        rules = [rule for rule in self._rules if rule.allows(host, port)]
        if network_rules.is_address(host):
            raise Refusal(403, f"IP addresses are not allowed; this box may reach {self._known}")
        if not rules:
            raise Refusal(403, f"this box may reach only {self._known}")
        private = any(rule.private for rule in rules)
        parent = self._parents.get("http" if request.path else "https")
        parent = None if private or self._direct(f"{host}:{port}") else parent
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                addresses = await self._addresses(host, port, private, by_parent=parent is not None)
                if parent is None:
                    return await _connect(addresses, port), None
                return await _through(parent, request), parent
        except TimeoutError:
            raise Refusal(504, f"{host} did not answer within {CONNECT_SECONDS:.0f} s") from None
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise Refusal(502, f"{host} cannot be reached: {reason}") from error

    async def _addresses(
        self, host: str, port: int, private: bool, *, by_parent: bool
    ) -> Sequence[str]:
        """Resolves a host name, and returns its IP addresses. Raises Refusal if the name cannot be resolved,
        or if a box may not connect to one of the addresses. `private` says whether addresses that are not
        public are allowed, too (see `network_rules.permits`).

        If `by_parent` is true and the name cannot be resolved here, returns an empty sequence instead,
        because the host's own proxy may be able to resolve it.
        """
        await self._resolving.acquire()
        loop = asyncio.get_running_loop()
        lookup = loop.run_in_executor(_threads(os.getpid()), self._resolve, host, port)
        lookup.add_done_callback(self._resolved)
        try:
            addresses = await asyncio.shield(lookup)  # after a cancel, the thread goes on
        except OSError:
            if by_parent:
                return ()
            raise Refusal(502, f"{host} cannot be resolved") from None
        if not all(network_rules.permits(address, private=private) for address in addresses):
            raise Refusal(403, f"{host} resolves to an address that is not public")
        return addresses

    def _resolved(self, lookup: asyncio.Future[Sequence[str]]) -> None:
        self._resolving.release()
        if not lookup.cancelled():
            lookup.exception()  # marks the error as retrieved: the caller may be gone

    async def _refuse(
        self, refusal: Refusal, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Sends an error response to the client. The response's status line contains the reason, because
        clients show only this line if a tunnel is refused."""
        body = f"air: {refusal}\n".encode("ascii", "replace")
        reason = body.rstrip()[:800].decode()
        head = f"HTTP/1.1 {refusal.status} {reason}\r\nContent-Type: text/plain\r\n"
        head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode("ascii") + body)
        writer.write_eof()
        async with asyncio.timeout(HEAD_SECONDS):  # unread input would reset the connection
            room = _DISCARD_BYTES
            while room > 0 and (data := await reader.read(port_relay.PIECE)):
                room -= len(data)


def addresses(host: str, port: int) -> list[str]:
    """Returns the IP addresses of the host name `host` for connections to the TCP port `port`, without
    duplicates. Raises OSError if the name has no address."""
    entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


async def _lines(reader: asyncio.StreamReader) -> list[bytes]:
    """Reads the request line and the header lines of a request, and returns them without line ends. Raises
    Refusal if the request line is malformed, if the client sends no complete head, or if the head is longer
    than `HEAD_BYTES`."""
    lines: list[bytes] = []
    size = 0
    while True:
        try:
            line = await reader.readline()
        except ValueError:  # a line is longer than the reader's limit
            raise Refusal(400, "a line of the request is too long") from None
        size += len(line)
        if not line.endswith(b"\r\n") or size > HEAD_BYTES:
            raise Refusal(400, "this is an HTTP proxy, and that is no request")
        if line == b"\r\n":
            return lines
        lines.append(line[:-2])
        if len(lines) == 1:
            parse(lines)


async def _connect(addresses: Sequence[str], port: int) -> port_relay.Streams:
    """Opens a TCP connection to the port `port` of the first of `addresses` that accepts it, and returns the
    connection's streams. Tries at most `_ADDRESSES_TRIED` addresses. Raises OSError if all of them fail."""
    last: OSError = ConnectionError("the name has no address")
    for address in addresses[:_ADDRESSES_TRIED]:
        try:
            return await asyncio.open_connection(address, port, limit=port_relay.PIECE)
        except OSError as error:
            last = error
    raise last


async def _through(parent: Parent, request: Request) -> port_relay.Streams:
    """Connects to the host's own proxy `parent`. For a `CONNECT` request, also waits until that proxy has
    opened the tunnel. Raises Refusal if that proxy refuses the tunnel, OSError if it cannot be reached."""
    reader, writer = await asyncio.open_connection(parent.host, parent.port, limit=port_relay.PIECE)
    if request.path:
        return reader, writer
    try:
        lines = [f"CONNECT {request.authority} HTTP/1.1", f"Host: {request.authority}"]
        if parent.authorization:
            lines.append(f"Proxy-Authorization: {parent.authorization}")
        writer.write("\r\n".join([*lines, "", ""]).encode("ascii"))
        answer = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0].decode("latin-1")
        if not re.match(r"HTTP/1\.[01] 2[0-9][0-9]( |$)", answer):
            raise Refusal(502, f"this machine's own proxy refuses {request.host}: {answer[:200]}")
    except BaseException as error:  # cancellation too: nobody else closes the connection
        writer.transport.abort()
        if isinstance(error, asyncio.IncompleteReadError | asyncio.LimitOverrunError):
            raise Refusal(502, "this machine's own proxy does not answer") from None
        raise
    return reader, writer


async def _exchange(
    request: Request, parent: Parent | None, near: port_relay.Streams, far: port_relay.Streams
) -> None:
    """Sends a plain `http://` request to `far`, and copies the response to `near`, the connection to the box.
    `far` is the connection to the server or, if `parent` is given, to the host's own proxy `parent`."""
    authorization = parent.authorization if parent else None
    far[1].write(request.head(authorization, absolute=parent is not None))
    if request.expects:
        near[1].write(b"HTTP/1.1 100 Continue\r\n\r\n")
    async with port_relay.idle_timeout(IDLE_SECONDS) as alive:
        sending = asyncio.create_task(_send_body(near[0], far[1], request.length or 0, alive))
        try:
            await port_relay.copy(far[0], near[1], alive)
        finally:
            sending.cancel()
            await asyncio.wait([sending])


async def _send_body(
    source: asyncio.StreamReader, sink: asyncio.StreamWriter, size: int, alive: Callable[[], None]
) -> None:
    """Copies the body of a request, `size` bytes, from `source` (the client) to `sink` (the server). Calls
    `alive` after each piece, to show that the transfer goes on. If the client sends fewer bytes, aborts the
    connection to the server."""
    while size:
        try:
            data = await source.read(min(port_relay.PIECE, size))
        except ConnectionError:
            data = b""
        if not data:
            sink.transport.abort()
            return
        size -= len(data)
        try:
            sink.write(data)
            await sink.drain()
        except ConnectionError:  # the server accepts no more; its response may say why
            return
        alive()


@cache
def _threads(_pid: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(16, thread_name_prefix="air-resolve")
