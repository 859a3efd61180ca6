"""Connects to a remote server of the Model Context Protocol (MCP), over streamable HTTP or server-sent events
(SSE).

All connections go through an egress proxy (`air.sandbox.network`), which connects only to the host and port
of this server, and checks the address to which the host name resolves. Only redirects to the same origin are
followed. The size of responses is limited, and compressed responses are rejected. Cookies that the server
sets are not sent back: an agent that controls a response could name another client's session in one.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import SplitResult, urlsplit

from air.aio import cancel_and_wait
from air.sandbox.network.egress_proxy import Proxy
from air.tools.mcp.connection import CALL_BYTES, ConnectionLost, short

if TYPE_CHECKING:
    import httpx2
    from mcp.client._transport import TransportStreams

REDIRECTS = 3
CONNECT_SECONDS, IDLE_SECONDS = 30.0, 300.0
_REFUSED, _FORGOTTEN, _SERVER_FAILED = 400, 404, 500


class RemoteChannel:
    """A `Channel` (transport) to one remote MCP server."""

    def __init__(
        self,
        url: str,
        hosts: Sequence[str],
        *,
        headers: Mapping[str, str] | None = None,
        transport: Literal["streamable-http", "sse"] = "streamable-http",
    ) -> None:
        self._url, self._hosts = url, hosts
        self._headers = dict(headers or {})
        self._transport = transport
        self._left = CALL_BYTES
        self.reason = self.status = ""
        self.broken = asyncio.Event()

    def listen(self) -> None:
        """Called when a request begins: allows the server to send up to `CALL_BYTES` from now on, and
        clears earlier errors."""
        self._left, self.reason, self.status = CALL_BYTES, "", ""
        self.broken.clear()

    def pause(self) -> None:
        """Does nothing, because reading goes on between calls. What the server sends then counts towards the
        byte limit of the last call."""

    @asynccontextmanager
    async def streams(self) -> AsyncIterator[TransportStreams]:
        """Context manager that connects to the server through a new egress proxy, which allows only the
        server's host, and yields the incoming and the outgoing message stream."""
        from mcp.client.sse import sse_client
        from mcp.client.streamable_http import streamable_http_client

        async with _serving(self._hosts) as proxy:
            if self._transport == "sse":
                factory = _Factory(self, proxy)
                async with sse_client(
                    self._url,
                    headers=self._headers,
                    timeout=CONNECT_SECONDS,
                    sse_read_timeout=IDLE_SECONDS,
                    httpx_client_factory=factory,
                ) as streams:
                    yield streams
                return
            async with (
                self.client(proxy, self._headers) as http,
                streamable_http_client(self._url, http_client=http) as streams,
            ):
                yield streams

    def client(self, proxy: str, headers: Mapping[str, str] | None) -> httpx2.AsyncClient:
        """Returns an HTTP client for the server. `proxy` is the URL of the egress proxy."""
        import httpx2

        transport = httpx2.AsyncHTTPTransport(verify=_certificates(), proxy=proxy, trust_env=False)
        return httpx2.AsyncClient(
            transport=_bounded(transport, self),
            headers=dict(headers or {}),
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),  # it keeps none
            timeout=httpx2.Timeout(CONNECT_SECONDS, read=IDLE_SECONDS),
            follow_redirects=True,
            max_redirects=REDIRECTS,
            event_hooks={"request": [self._stay]},
            trust_env=False,
        )

    async def _stay(self, request: httpx2.Request) -> None:
        if _origin(urlsplit(str(request.url))) != _origin(urlsplit(self._url)):
            raise self.lost("it redirects to another host")

    def lost(self, reason: str) -> ConnectionLost:
        """Stores `reason` as the reason why the connection ended, and returns a ConnectionLost exception with
        it."""
        self.reason = reason
        return ConnectionLost(reason)

    def note(self, response: httpx2.Response) -> None:
        """Stores the status line of an HTTP response in `status` if its code is an error code (400 or
        higher). If the code is 500 or higher (the server or a gateway failed) or 404 (the server does not
        know the session), also stores it in `reason`, the reason why the connection broke."""
        if response.status_code >= _REFUSED:
            phrase = response.extensions.get("reason_phrase", b"").decode("ascii", "replace")
            self.status = short(f"HTTP status {response.status_code} {phrase}")
        if response.status_code >= _SERVER_FAILED or response.status_code == _FORGOTTEN:
            self.reason = self.status

    def take(self, size: int) -> None:
        """Counts `size` further bytes that the server has sent. Raises ConnectionLost if the server has sent
        more than `CALL_BYTES` since the current request began."""
        self._left -= size
        if self._left < 0:
            raise self.lost(f"it sent more than {CALL_BYTES // 2**20} MiB in one call")


class _Factory:
    """Creates HTTP clients that use the channel's egress proxy and limits. The package `mcp` calls such an
    object to create the client of a connection with server-sent events."""

    def __init__(self, channel: RemoteChannel, proxy: str) -> None:
        self._channel, self._proxy = channel, proxy

    def __call__(
        self,
        headers: dict[str, str] | None = None,
        timeout: Any = None,
        auth: Any = None,
    ) -> httpx2.AsyncClient:
        return self._channel.client(self._proxy, headers)


def _bounded(inner: httpx2.AsyncHTTPTransport, channel: RemoteChannel) -> Any:
    """Returns an HTTP transport (the object through which a client of the library httpx2 sends requests) that
    sends requests through the transport `inner`. It counts the bytes of each response towards the limit of
    `channel` (the connection to a tool server), and stores errors there. It asks for uncompressed responses,
    and ends the connection if the server compresses one nevertheless."""
    import httpx2

    class Counted(httpx2.AsyncByteStream):
        def __init__(self, stream: httpx2.AsyncByteStream) -> None:
            self._stream = stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for data in self._stream:
                channel.take(len(data))
                yield data

        async def aclose(self) -> None:
            await self._stream.aclose()

    class Bounded(httpx2.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            request.headers["accept-encoding"] = "identity"
            try:
                response = await inner.handle_async_request(request)
            except httpx2.TransportError as error:
                if request.method == "POST":  # others only listen, and are sent anew
                    channel.reason = short(f"{type(error).__name__}: {error}")
                    channel.broken.set()
                raise
            channel.note(response)
            if channel.reason and request.method == "POST":
                channel.broken.set()
            if response.headers.get("content-encoding", "identity") != "identity":
                await response.aclose()
                raise channel.lost("it compresses its answers unasked")
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            return httpx2.Response(
                response.status_code,
                headers=response.headers,
                stream=Counted(response.stream),
                extensions=response.extensions,
            )

        async def aclose(self) -> None:
            await inner.aclose()

    return Bounded()


def _origin(parts: SplitResult) -> tuple[str, str | None, int | None]:
    return parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)


@cache
def _certificates() -> ssl.SSLContext:
    return ssl.create_default_context()  # takes 20 ms to make, so all connections share it


@asynccontextmanager
async def _serving(hosts: Sequence[str]) -> AsyncIterator[str]:
    """Context manager that runs an egress proxy, which allows only `hosts`, on a loopback port, and yields
    the proxy's URL."""
    proxy, tasks = Proxy(hosts), set[asyncio.Task[None]]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await proxy.serve(reader, writer)
        except (OSError, TimeoutError):
            pass  # the client gets the end of its connection, and says what that means
        finally:
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in list(tasks):
            await cancel_and_wait(task)
