"""All attacks of the integrity battery (agents' attempts to cheat), with one module for each family, that is,
for each goal."""

from __future__ import annotations

from air.integrity.attack import Attack
from air.integrity.attacks import (
    carry_over,
    denial,
    forging,
    harness,
    injection,
    isolation,
    labels,
    masking,
    oracle,
    resources,
)
from air.integrity.attacks.boxes import BOX_ATTACKS

ATTACKS: tuple[Attack, ...] = (
    *isolation.ATTACKS,
    *forging.ATTACKS,
    *labels.ATTACKS,
    *oracle.ATTACKS,
    *denial.ATTACKS,
    *masking.ATTACKS,
    *carry_over.ATTACKS,
    *harness.ATTACKS,
    *resources.ATTACKS,
    *injection.ATTACKS,
)
"""All attacks that are run as episodes of a task. Attacks on a box without a task are in `boxes`."""

__all__ = ["ATTACKS", "BOX_ATTACKS"]
