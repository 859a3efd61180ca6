"""Sends the HTTP requests of the tools `web_page` and `web_search`, only to the hosts that the run allows.
All requests go through an egress proxy (a local proxy that decides which connections are allowed); each
episode has its own.

The proxy resolves host names itself and connects only to addresses that it has checked. Therefore neither a
redirect nor a host name whose address changes can lead to this machine, its network, or a cloud's metadata
service.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from air.errors import InfrastructureError
from air.sandbox.contract import network_rules
from air.sandbox.network.egress_proxy import Proxy, Resolve

if TYPE_CHECKING:
    import httpx

_REDIRECTS = 5
_LONGEST_URL = 2000


class WebError(Exception):
    """Raised if a URL cannot be read. The attribute `server` is true if the server or the connection may be
    at fault, and false if the URL is."""

    def __init__(self, message: str, *, server: bool = False) -> None:
        super().__init__(message)
        self.server = server


@dataclass(frozen=True)
class Page:
    """The response to a GET request: a page with its first bytes."""

    url: str
    """The URL after redirects."""
    kind: str
    """The media type in lower case, such as `text/html`; empty if the response names none."""
    charset: str
    data: bytes
    whole: bool
    """Whether `data` is the whole body of the response. If not, `data` is only its beginning."""


@functools.cache
def certificates() -> ssl.SSLContext:
    """Returns a TLS context with the trusted certificate authorities. The context is cached, because loading
    the certificates is slow. Raises OSError if they cannot be loaded."""
    import httpx

    return httpx.create_ssl_context(trust_env=False)


class Browser:
    """An HTTP client that can access only the hosts in `entries`: a list of host names, `*.` and a domain, or
    `*`, in the syntax of `BoxSpec.network`. Tests can replace two functions: `resolve`, with which the egress
    proxy looks up host names, and `load_certificates`, which loads the trusted certificate authorities."""

    def __init__(
        self,
        entries: Sequence[str],
        resolve: Resolve | None = None,
        load_certificates: Callable[[], ssl.SSLContext] = certificates,
    ) -> None:
        self._load_certificates = load_certificates
        self._entries = tuple(entries)
        self._rules = [network_rules.rule(entry) for entry in entries]
        self._proxy = Proxy(entries, resolve=resolve)
        self._server: asyncio.Server | None = None
        self._client: httpx.AsyncClient | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> Self:
        """Starts the egress proxy and the client, and returns this object. Raises InfrastructureError if the
        trusted certificates cannot be loaded, or if the proxy cannot listen on a port."""
        import httpx

        try:
            trusted = self._load_certificates()
        except OSError as error:
            raise InfrastructureError(f"no certificates for a tool: {error}") from error
        try:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        except OSError as error:
            raise InfrastructureError(f"no egress proxy for a tool: {error}") from error
        port = self._server.sockets[0].getsockname()[1]
        self._client = httpx.AsyncClient(
            proxy=f"http://127.0.0.1:{port}",
            trust_env=False,
            verify=trusted,
            headers={"Accept-Encoding": "identity", "User-Agent": "air"},
            limits=httpx.Limits(max_keepalive_connections=0),
        )
        return self

    async def close(self) -> None:
        """Closes the client, the proxy, and its connections."""
        if self._server is not None:  # first, so that cancellation leaves no proxy
            self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._client is not None:
            await self._client.aclose()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def get(self, url: str, most: int, headers: Mapping[str, str] | None = None) -> Page:
        """Sends a GET request, with the additional headers `headers`, and returns the page at `url`, with at
        most `most` bytes of its body. At most `_REDIRECTS` redirects are followed, and none if `headers` are
        given. Raises WebError if the page cannot be read or its host is not allowed."""
        import httpx

        for _ in range(_REDIRECTS + 1):
            target = self._checked(url)
            assert self._client is not None
            try:
                async with self._client.stream("GET", target, headers=headers) as answer:
                    following = answer.next_request if not headers else None
                    if following is None:
                        return await _page(answer, most)
                    url = str(following.url)
            except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
                about = str(error) or type(error).__name__
                raise WebError(f"{url[:200]} cannot be read: {about[:300]}", server=True) from None
        raise WebError(f"{url[:200]} redirects more than {_REDIRECTS} times.")

    def _checked(self, url: str) -> httpx.URL:
        """Parses and returns a URL. Raises WebError if the URL is malformed or its host is not allowed, for a
        clear message; the egress proxy checks the host in any case."""
        import httpx

        if len(url) > _LONGEST_URL:
            raise WebError(f"The address is longer than {_LONGEST_URL} characters.")
        try:
            target = httpx.URL(url.strip())
        except (httpx.InvalidURL, ValueError, TypeError):
            raise WebError(f"{url[:200]!r} is no address.") from None
        if target.scheme not in ("http", "https") or not target.host:
            raise WebError(f"{url[:200]!r} is no address of a page: write https://HOST/PATH.")
        if target.userinfo:
            raise WebError("An address with a password is not read.")
        host = network_rules.normal(target.raw_host.decode("ascii", "replace"))
        port = target.port or (443 if target.scheme == "https" else 80)
        if network_rules.is_address(host) or not any(r.allows(host, port) for r in self._rules):
            known = ", ".join(entry.removesuffix(" private") for entry in self._entries)
            raise WebError(f"{host[:100]}:{port} is not open. Open: {known[:500]}.")
        return target

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                await self._proxy.serve(reader, writer)
        finally:
            writer.transport.abort() if writer.is_closing() else writer.close()


async def _page(answer: httpx.Response, most: int) -> Page:
    if answer.status_code != 200:
        busy = answer.status_code in (401, 403, 407, 429, 502, 503, 504)
        raise WebError(f"{str(answer.url)[:200]} answers {answer.status_code}.", server=busy)
    if answer.headers.get("content-encoding", "identity").lower() != "identity":
        raise WebError(f"{str(answer.url)[:200]} is compressed.")
    parts: list[bytes] = []
    size = 0
    async for part in answer.aiter_raw(65536):
        parts.append(part)
        size += len(part)
        if size > most:
            break
    data = b"".join(parts)
    kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    charset = (answer.charset_encoding or "utf-8").lower()
    return Page(str(answer.url), kind, charset, data[:most], len(data) <= most)
