"""The settings of a server's address, and those of `air serve sandbox`."""

from __future__ import annotations

import ipaddress
import os
import resource
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from air.config import BaseConfig
from air.sandbox.contract.box import BoxLimits, BoxSpec


class ListenConfig(BaseConfig):
    """Settings that every server has: its address, its token, and what it accepts."""

    host: str = "127.0.0.1"
    """The address on which the server listens. Any address but loopback needs a `token`."""
    port: int = Field(8080, ge=0, le=65535)
    """The port on which the server listens. 0 takes any free port."""
    token: str = ""
    """The secret that every request must carry; empty: requests need none. See `air.serve.token`."""
    tls_cert: str = ""
    """The file (PEM) with the server's certificate and the certificates that signed it. Empty: plain HTTP."""
    tls_key: str = ""
    """The file with the private key of `tls_cert`."""
    max_body_mb: float = Field(64.0, gt=0)
    """Maximum size of a request in MiB."""
    max_bodies_mb: float = Field(1024.0, gt=0)
    """Maximum size of the bodies of all running requests together, in MiB. Further requests are refused."""
    max_connections: int = Field(default_factory=lambda: min(2000, most_files() // 2), ge=1)
    """The largest number of open connections. For a further connection, the server closes the one that has
    been idle for longest. If no connection is idle, the further connection is refused."""
    head_seconds: float = Field(30.0, gt=0, allow_inf_nan=False)
    """Seconds that a client may take for the headers of a request."""
    body_seconds: float = Field(30.0, gt=0, allow_inf_nan=False)
    """Seconds that a client may take for the body of a request, plus one second for each 64 KiB of it."""
    answer_seconds: float = Field(60.0, gt=0, allow_inf_nan=False)
    """Seconds after which a connection is cut if its client reads nothing of a complete answer."""
    keep_alive_seconds: float = Field(600.0, gt=0, allow_inf_nan=False)
    """Seconds after which the server closes a connection without requests. A client that reuses a connection
    while the server closes it sees a failure, so a low value does harm."""

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
    """Settings of a server of boxes, and of the boxes that it lends."""

    image: str = "air-code"
    """The image of the boxes: `air-code` has many languages, `air-base` only Python and bash."""
    max_boxes: int = Field(default_factory=lambda: 2 * (os.cpu_count() or 1), ge=1)
    """The largest number of boxes at once. Further requests queue."""
    max_queued: int = Field(1000, ge=0)
    """The largest number of requests that wait for a box. Further requests are refused at once."""
    max_paused: int = Field(-1, ge=-1)
    """The largest number of E2B's sandboxes that are paused with their processes. Each of them holds a box
    until a client ends or resumes it. -1: half of `max_boxes`."""
    max_snapshots: int = Field(256, ge=0)
    """The largest number of snapshots of E2B's sandboxes. It includes the files of sandboxes that are paused
    without their processes. Snapshots take room on the disk until a client removes them."""
    warm: int = Field(2, ge=0)
    """The number of started boxes that are kept ready for the next requests."""
    fresh_boxes: bool = False
    """Whether each request gets a new box. Otherwise a box is reset for the next request, which is many times
    as fast. The documentation's chapter on the server says what a reset guarantees."""
    limits: BoxLimits = BoxLimits(memory_mb=2048, disk_mb=256, pids=256, seconds=3600)
    """The limits of a box unless a request sets its own."""
    queue_seconds: float = Field(10.0, ge=0)
    """Seconds that a client waits for its answer in addition to the time limits in its request. A request
    that would have to wait longer, because all boxes are in use, is refused."""
    datasets: Path | None = None
    """The folder of the datasets of SandboxFusion's endpoints; None: the server has none of its own."""
    domain: str = ""
    """The domain in the addresses of ports of E2B's sandboxes, `PORT-ID.DOMAIN`. The DNS must resolve every
    name below the domain to this server. Empty: `localhost` and the server's port."""

    @property
    def most_paused(self) -> int:
        """The value of `max_paused`, with -1 replaced by half of `max_boxes`."""
        return self.max_paused if self.max_paused >= 0 else max(1, self.max_boxes // 2)

    @property
    def spec(self) -> BoxSpec:
        """The settings of a box, without what a request changes."""
        return BoxSpec(image=self.image, limits=self.limits)


def most_files() -> int:
    """Returns how many files this process may have open at most."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return hard if hard != resource.RLIM_INFINITY else 1 << 20


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address `host`."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
