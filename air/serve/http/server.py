"""Runs the HTTP servers of `air serve` until the process receives SIGINT or SIGTERM. At the end, all boxes
(containers) of a server are closed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TypeVar, cast

import uvicorn

from air.errors import AirError, InfrastructureError, UsageError
from air.serve.http.app import BaseServer, Protocol, Server, application
from air.serve.http.boxes import Boxes
from air.serve.http.connections import Connections
from air.serve.http.log import Log, LogHandler
from air.serve.http.metrics import Metrics
from air.serve.http.settings import ListenConfig, ServeConfig, most_files

ServerT = TypeVar("ServerT", bound=BaseServer)
STOP_SECONDS = 2
"""Seconds that running requests have to finish after SIGINT or SIGTERM. After this time, the server ends them
and closes their boxes (containers)."""
_KEEP_ALIVE = {socket.TCP_KEEPIDLE: 60, socket.TCP_KEEPINTVL: 15, socket.TCP_KEEPCNT: 4}
OTHER_FILES = 256
"""The number of open files that the server process needs, in addition to one for each client connection. If
the limit on open files is too low for both, the server does not start."""


async def serve(
    config: ServeConfig,
    protocols: Sequence[Callable[[Server], Protocol]],
    *,
    say: Callable[[str], None] = print,
    log: Log | None = None,
) -> None:
    """Runs a sandbox server (`air serve sandbox`) until SIGINT or SIGTERM. As soon as the server accepts
    requests, calls `say` with one line of text that contains the server's URL. `protocols` are the classes of
    the server's protocols; each is called with the server's state. `log` is the server's log (None: standard
    error).

    Raises UsageError if the address is in use, and the errors that the protocols raise at the start
    (`Protocol.running`).
    """

    @contextlib.asynccontextmanager
    async def opened(metrics: Metrics, log: Log) -> AsyncIterator[Server]:
        boxes = Boxes(
            config.max_boxes,
            config.warm,
            metrics,
            fresh=config.fresh_boxes,
            queue=config.max_queued,
        )
        async with boxes:
            yield Server(config, metrics, log, boxes)
        log.event("stop", boxes=boxes.pool.stats.live)

    await run(config, opened, protocols, say=say, log=log)


async def run(
    config: ListenConfig,
    opened: Callable[[Metrics, Log], AbstractAsyncContextManager[ServerT]],
    protocols: Sequence[Callable[[ServerT], Protocol]],
    *,
    say: Callable[[str], None] = print,
    log: Log | None = None,
) -> None:
    """Runs any HTTP server until SIGINT or SIGTERM. `opened` returns an async context manager that yields the
    state which the protocols share, and releases it at the end. `protocols` are the classes of the protocols;
    each is called with this state. As soon as the server accepts requests, calls `say` with one line of text
    that contains the server's URL. `log` is the server's log (None: standard error). Raises UsageError if the
    address is in use."""
    metrics, log = Metrics(), log or Log()
    check_certificate(config)
    _allow_files(config)
    listener = bind(config.host, config.port)
    with contextlib.closing(listener), _logging_to(log):
        async with contextlib.AsyncExitStack() as stack:
            server = await stack.enter_async_context(opened(metrics, log))
            spoken = [make(server) for make in protocols]
            for each in spoken:
                await stack.enter_async_context(each.running())
            await _answer(server, spoken, listener, say)


async def _answer(
    server: BaseServer,
    protocols: Sequence[Protocol],
    listener: socket.socket,
    say: Callable[[str], None],
) -> None:
    settings = http_config(server, protocols)

    def started() -> None:
        address = url(listener, "https" if server.config.tls_cert else "http")
        say(f"serving on {address}")
        server.log.event("start", url=address, **server.health_fields())

    http = _Http(settings, started)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, http.stop, number, server.log)
    try:
        await http.serve(sockets=[listener])
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
    if not http.stopped:
        raise InfrastructureError("the HTTP server ended by itself")


def http_config(server: BaseServer, protocols: Sequence[Protocol]) -> uvicorn.Config:
    """Returns the settings of uvicorn (the HTTP server library) for a server with these protocols."""
    connections = Connections(server.config, server.metrics)
    return uvicorn.Config(
        application(server, protocols),
        http=cast("type[asyncio.Protocol]", connections.protocol),  # uvicorn only calls the object
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="auto",
        timeout_graceful_shutdown=STOP_SECONDS,
        backlog=1024,
        ssl_certfile=server.config.tls_cert or None,
        ssl_keyfile=server.config.tls_key or None,
    )


class _Http(uvicorn.Server):
    """uvicorn's server class without uvicorn's own signal handlers, which would end the process before the
    boxes (containers) are closed. `stop` handles the signals instead."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_start = started
        self.stopped = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_start()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def stop(self, number: int, log: Log) -> None:
        """Handles the signal `number` (SIGINT or SIGTERM): makes the server stop when the running requests
        have ended. The second call makes it stop at once."""
        log.event("signal", name=signal.Signals(number).name)
        self.force_exit = self.stopped
        self.stopped = self.should_exit = True


def check_certificate(config: ListenConfig) -> None:
    """Raises UsageError if the files of the TLS certificate and its key cannot be read, or do not match. Does
    nothing if the settings name no certificate."""
    if config.tls_cert:
        try:
            ssl.create_default_context().load_cert_chain(config.tls_cert, config.tls_key)
        except OSError as error:
            raise UsageError(
                f"no certificate with its key ({error.strerror or error})",
                where=f"{config.tls_cert}, {config.tls_key}",
                remedy="give PEM files of one certificate to --tls-cert and --tls-key",
            ) from None


def _allow_files(config: ListenConfig) -> None:
    """Raises this process's limit on open files as far as possible (the soft limit to the hard limit). Raises
    UsageError if even this is too low for the setting `max_connections`."""
    hard = most_files()
    if config.max_connections + OTHER_FILES > hard:
        raise UsageError(
            f"{config.max_connections} connections need more open files than the {hard} of this process",
            where="--max-connections",
            remedy="give a lower number, or raise the hard limit of `ulimit -n`",
        )
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (hard, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    )


def bind(host: str, port: int) -> socket.socket:
    """Returns a socket that listens on `host` (a name or an IP address) and `port` (0: a free port). Raises
    UsageError if the address is invalid or in use."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # The protocol is named because asyncio disables Nagle's algorithm only for a known protocol.
        # Otherwise the body of a response waits 40 ms, until the client has acknowledged the headers.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    except OSError as error:
        raise _refused(host, port, error) from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit this option: a client whose machine has vanished is noticed after two minutes.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEP_ALIVE.items():
            listener.setsockopt(socket.IPPROTO_TCP, option, value)
        listener.bind((host, port))
        # Not left to uvicorn: a second server on this port must fail here, before it opens its boxes.
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise _refused(host, port, error) from None
    return listener


def _refused(host: str, port: int, error: OSError) -> AirError:
    return UsageError(
        f"cannot listen there ({error.strerror or error})",
        where=f"{host}:{port}",
        remedy="choose another --port (0 for a free one) or --host",
    )


def url(listener: socket.socket, scheme: str = "http") -> str:
    """Returns the URL of a listening socket, such as `http://127.0.0.1:8080`."""
    host, port = listener.getsockname()[:2]
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


@contextlib.contextmanager
def _logging_to(log: Log) -> Iterator[None]:
    handler = LogHandler(log)
    loggers = [logging.getLogger(name) for name in ("air", "uvicorn.error")]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
