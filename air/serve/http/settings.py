"""The settings that all HTTP servers of air share, and those of `air serve sandbox`."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from air.config import BaseConfig
from air.origin_check import is_loopback
from air.sandbox.contract.box import BoxLimits, BoxSpec

HEALTHY = "ok"
"""The value of the field `status` in most servers' response to `/health`. If a server has a token, and the
request does not contain it, the response has only this field."""


class ListenConfig(BaseConfig):
    """Settings that every server has: its address, its token, TLS, and the limits on connections and
    requests."""

    host: str = "127.0.0.1"
    """The IP address or host name on which the server listens. If it is not a loopback address, `token` must
    be set."""
    port: int = Field(8080, ge=0, le=65535)
    """The port on which the server listens. 0: a free port, which the system chooses."""
    token: str = ""
    """The secret that every request must contain. Empty: requests need no secret. `air.serve.http.token`
    lists the headers in which a client can send it."""
    tls_cert: str = ""
    """The path of the PEM file with the server's TLS certificate, followed by the intermediate certificates.
    Empty: the server uses plain HTTP."""
    tls_key: str = ""
    """The path of the PEM file with the private key of `tls_cert`. Must be set if and only if `tls_cert` is
    set."""
    max_body_mb: float = Field(64.0, gt=0)
    """The maximum size of one request's body in MiB. Larger requests get the status 413."""
    max_bodies_mb: float = Field(1024.0, gt=0)
    """The maximum size of the bodies of all running requests together, in MiB. A request that would exceed it
    is refused with the status 503. It is also the maximum size of all finished responses that clients have
    not read yet; to stay below it, the server closes the connections with the oldest ones."""
    max_connections: int = Field(default_factory=lambda: min(2000, most_files() // 2), ge=1)
    """The maximum number of open connections. When a further client connects, the server closes a connection
    that is idle, or whose client is too slow to send a request's headers (see `Connections.make_room`). If
    there is none, the server refuses the new connection."""
    head_seconds: float = Field(30.0, gt=0, allow_inf_nan=False)
    """Seconds within which a client must send the headers of a request."""
    body_seconds: float = Field(30.0, gt=0, allow_inf_nan=False)
    """Seconds within which a client must send the body of a request. For each 64 KiB of the body, the client
    has one more second."""
    answer_seconds: float = Field(60.0, gt=0, allow_inf_nan=False)
    """If a client reads nothing more of a finished response for this number of seconds, the server closes the
    connection. It also does so if the client reads a large response (more than 64 KiB of it are unread) more
    slowly than 64 KiB per second, on average over this number of seconds."""
    keep_alive_seconds: float = Field(600.0, gt=0, allow_inf_nan=False)
    """Seconds after which the server closes an idle connection. With a low value, more clients fail because
    they reuse a connection that the server is just closing."""

    @model_validator(mode="after")
    def _closed(self) -> Self:
        if not self.token and not is_loopback(self.host):
            raise ValueError(
                f"`host`: {self.host} is not loopback, so other machines need a `token`"
            )
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("`tls_cert` and `tls_key` belong together: give both or none")
        return self


class ServeConfig(ListenConfig):
    """Settings of a sandbox server (`air serve sandbox`), and of the boxes (containers) in which it runs
    clients' code."""

    image: str = "air-code"
    """The container image from which the boxes start. `air-code` has compilers and interpreters of many
    languages; `air-base` has only Python and bash."""
    max_boxes: int = Field(default_factory=lambda: 2 * (os.cpu_count() or 1), ge=1)
    """The maximum number of boxes (containers) at the same time, for all clients together. Further requests
    wait in a queue."""
    max_queued: int = Field(1000, ge=0)
    """The maximum number of requests that wait for a box (container). Further requests are refused at
    once."""
    max_paused: int = Field(-1, ge=-1)
    """The maximum number of E2B sandboxes that are paused with their processes at the same time. Each of them
    occupies a box (container) until a client kills or resumes the sandbox. -1: half of `max_boxes`, but at
    least 1."""
    max_snapshots: int = Field(256, ge=0)
    """The maximum number of snapshots (copies of the files of E2B sandboxes) that the server stores. A
    sandbox that is paused without its processes counts as one snapshot. A snapshot takes disk space until a
    client deletes it."""
    warm: int = Field(2, ge=0)
    """The number of spare boxes (containers) that are started in advance, for each combination of image and
    limits that requests use. They count towards `max_boxes`."""
    fresh_boxes: bool = False
    """Whether each request gets a new box (container). If false, a box is reset after each request and used
    again, which is many times as fast. `docs/serve.md` says what a reset guarantees."""
    limits: BoxLimits = BoxLimits(memory_mb=2048, disk_mb=256, pids=256, seconds=3600)
    """The limits on memory, disk space and so on of a box (container), unless a request sets its own."""
    queue_seconds: float = Field(10.0, ge=0)
    """Seconds that a client is assumed to wait for the response, in addition to the time limits in its
    request. If no box (container) becomes free early enough to respond within this time, the server refuses
    the request."""
    datasets: Path | None = None
    """The folder with the datasets of programming problems for SandboxFusion's dataset endpoints
    (`air.serve.fusion.datasets.store` describes its layout). None: the server has no datasets."""
    domain: str = ""
    """The domain DOMAIN of the URLs at which clients reach the ports of E2B sandboxes: `PORT-ID.DOMAIN`. DNS
    must resolve all names below this domain to the server. Empty: `localhost` and the server's port."""

    @property
    def most_paused(self) -> int:
        """The effective value of `max_paused`: if that is -1, half of `max_boxes`, but at least 1."""
        return self.max_paused if self.max_paused >= 0 else max(1, self.max_boxes // 2)

    @property
    def spec(self) -> BoxSpec:
        """The settings of the box (container) for a request that sets none of its own."""
        return BoxSpec(image=self.image, limits=self.limits)


def most_files() -> int:
    """Returns the maximum number of files that this process can open at the same time (its hard limit)."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return hard if hard != resource.RLIM_INFINITY else 1 << 20
