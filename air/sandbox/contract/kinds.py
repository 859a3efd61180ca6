"""The kinds of boxes: one table with the three names of each kind.

A run file and verifiers use `runtime.type`, a box's spec its provider, a recorded episode its isolation.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from air.sandbox.contract.box import Isolation


class Kind(NamedTuple):
    """One kind of box."""

    runtime: Literal["docker", "subprocess"]
    provider: Literal["docker", "process"]
    isolation: Isolation


KINDS = (Kind("docker", "docker", "container"), Kind("subprocess", "process", "process"))
OF_RUNTIME: dict[str, Kind] = {kind.runtime: kind for kind in KINDS}
OF_ISOLATION: dict[str, Kind] = {kind.isolation: kind for kind in KINDS}
