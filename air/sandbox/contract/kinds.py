"""The two kinds of boxes, container and process box, and the name of each kind in run files, in `BoxSpec` and
in recorded episodes."""

from __future__ import annotations

from typing import Literal, NamedTuple

from air.sandbox.contract.box import Isolation


class Kind(NamedTuple):
    """One kind of box, with its three names: `runtime` in run files (`runtime.type`), `provider` in
    `BoxSpec`, and `isolation` in recorded episodes."""

    runtime: Literal["docker", "subprocess"]
    provider: Literal["docker", "process"]
    isolation: Isolation


KINDS = (Kind("docker", "docker", "container"), Kind("subprocess", "process", "process"))
OF_RUNTIME: dict[str, Kind] = {kind.runtime: kind for kind in KINDS}
OF_ISOLATION: dict[str, Kind] = {kind.isolation: kind for kind in KINDS}
