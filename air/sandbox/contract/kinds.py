"""The kinds of box, each by its three names; the one table of them.

A run file, and verifiers, name a kind by `runtime.type`; a box's spec by its provider; a recorded episode by
how far it isolated.
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
