"""The two kinds of boxes, container and plain process: a table of the three names that each kind has.

Run files and verifiers name a kind by `runtime.type`, a `BoxSpec` by its provider, a recorded episode by its
isolation.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from air.sandbox.contract.box import Isolation


class Kind(NamedTuple):
    """One kind of box: the names by which run files, `BoxSpec` and recorded episodes call it."""

    runtime: Literal["docker", "subprocess"]
    provider: Literal["docker", "process"]
    isolation: Isolation


KINDS = (Kind("docker", "docker", "container"), Kind("subprocess", "process", "process"))
OF_RUNTIME: dict[str, Kind] = {kind.runtime: kind for kind in KINDS}
OF_ISOLATION: dict[str, Kind] = {kind.isolation: kind for kind in KINDS}
