"""Chooses the training engine for a run file (TOML): `embedded` (part of air, on this machine) or the package
`prime-rl`."""

from __future__ import annotations

from typing import Literal

from air.errors import MissingError
from air.sandbox.pool import gpus
from air.train.config.overrides import MergedSettings
from air.train.prime_rl import launch

Engine = Literal["embedded", "prime-rl"]
PRIME_TABLES = ("inference", "deployment", "slurm")
"""TOML tables that only prime-rl reads. A run file with one of these tables is meant for prime-rl."""


def choose(
    setting: Literal["auto", "embedded", "prime-rl"], merged: MergedSettings, *, dry_run: bool
) -> Engine:
    """Returns the name of the training engine for a run file: `setting`, if it is not `auto`. With `auto`,
    returns `prime-rl` if the run file has one of the tables in `PRIME_TABLES` and no table `[embedded]`, else
    `embedded`.

    `merged` has the merged settings of the run files. With `dry_run`, nothing is trained, so prime-rl need
    not be usable. Otherwise raises MissingError if `auto` leads to prime-rl, and prime-rl is not installed,
    or this machine has no GPU and the run file has no table `[slurm]`.
    """
    if setting != "auto":
        return setting
    tables = [name for name in PRIME_TABLES if name in merged.data]
    if not tables or "embedded" in merged.data:
        return "embedded"
    problem = "" if dry_run else _obstacle(merged)
    if problem:
        raise MissingError(
            f"`{tables[0]}` is for prime-rl, and {problem}",
            where=merged.where([tables[0]]),
            remedy=f"--dry-run shows the plan; {launch.HOW_TO_INSTALL}; or a file for the embedded engine",
        )
    return "prime-rl"


def _obstacle(merged: MergedSettings) -> str:
    if launch.interpreter() is None:
        return launch.NOT_INSTALLED
    if "slurm" not in merged.data and not gpus.inventory():
        return launch.NO_GPU
    return ""
