"""Names the two kinds of boxes: containers, and process boxes (ordinary processes, without a container). Run
files, `BoxSpec` and recorded episodes each use other names for the same kind; this module translates."""

from __future__ import annotations

from typing import Literal, NamedTuple

from air.sandbox.contract.box import Isolation


class Kind(NamedTuple):
    """One kind of box (container, or process box without a container), with its three names: `runtime` in the
    setting `runtime.type` of run files (`docker` or `subprocess`), `provider` in `BoxSpec.provider` (`docker`
    or `process`), and `isolation` in recorded episodes (`container` or `process`)."""

    runtime: Literal["docker", "subprocess"]
    provider: Literal["docker", "process"]
    isolation: Isolation


KINDS = (Kind("docker", "docker", "container"), Kind("subprocess", "process", "process"))
OF_RUNTIME: dict[str, Kind] = {kind.runtime: kind for kind in KINDS}
OF_ISOLATION: dict[str, Kind] = {kind.isolation: kind for kind in KINDS}
