"""The conformance suite: checks that test a real box against the promises of the interface `Box`.

Every provider of boxes must pass it. The checks marked `container` test isolation; a process box isolates
less, and fails those in `KNOWN_GAPS`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from air.sandbox import open_box
from air.sandbox.conformance import (
    attacks,
    commands,
    copies,
    limits,
    paths,
    ports,
    sessions,
    snapshots,
)
from air.sandbox.conformance.check import Check, Unmet
from air.sandbox.contract.box import Box, BoxSpec
from air.sandbox.process.namespaces import counts_by_namespace

Start = Callable[[BoxSpec], Awaitable[Box]]

CHECKS: tuple[Check, ...] = (
    *commands.CHECKS,
    *paths.CHECKS,
    *copies.CHECKS,
    *snapshots.CHECKS,
    *sessions.CHECKS,
    *attacks.CHECKS,
    *ports.CHECKS,
    *limits.CHECKS,
)
"""All checks of the suite, ordered by topic."""

LIMITS = frozenset(
    {
        "a-fork-bomb-is-bounded",
        "memory-is-bounded",
        "memory-of-many-processes-is-bounded",
        "cpu-is-bounded",
        "shared-memory-does-not-outlive-its-process",
        "the-kernel-keeps-the-limits",
        "there-are-no-more-processes-than-allowed",
        "with-no-process-left-files-are-still-served",
    }
)
"""Checks that only pass if the container engine enforces all limits of a box.

A rootless engine does so only with cgroup v2 controllers; see `air.sandbox.docker.limit_check`."""

_PODMAN = {
    "empty-files-are-bounded": "its tmpfs takes no `nr_inodes`",
    "nobody-makes-namespaces": "its seccomp profile lets any process make a user namespace",
}
_NO_TOTALS = {
    "the-kernel-keeps-the-limits": "no control group, which would enforce them",
    "cpu-is-bounded": "no control group: only the scheduler shares the CPU out",
    "memory-of-many-processes-is-bounded": "no control group: memory is bounded for each process",
}
_UNCOUNTED = {
    "a-fork-bomb-is-bounded": "before Linux 5.14, the user's other processes would count, too",
    "with-no-process-left-files-are-still-served": "before Linux 5.14, `pids` does not hold",
}
_ROOTS = {
    "only-the-named-folders-can-be-written": "/dev/shm can be, and the devices that every user may write",
}
_TOGETHER = _NO_TOTALS | _ROOTS | ({} if counts_by_namespace() else _UNCOUNTED)

KNOWN_GAPS: dict[str, dict[str, str]] = {
    "docker": {},
    "podman": _PODMAN,
    "process/root": _TOGETHER,
    "process/user": _TOGETHER
    | {"a-second-user-is-kept-apart": "a user other than root has only one user for a box"},
    "process/plain": _NO_TOTALS
    | {
        "a-fork-bomb-is-bounded": "`pids` is not enforced: processes of one user are counted together",
        "with-no-process-left-files-are-still-served": "`pids` is not enforced, as above",
        "there-are-no-more-processes-than-allowed": "`pids` is not enforced, as above",
        "only-the-named-folders-can-be-written": "the host's folders are this user's",
        "writable-folders-take-no-setuid-program-and-no-device": "folders are the host's",
        "empty-files-are-bounded": "folders are the host's, as above",
        "full-disks-are-bounded-and-said": "folders are the host's; only single files are bounded",
        "a-forks-own-writes-are-bounded": "folders are the host's, as above",
        "shared-memory-does-not-outlive-its-process": "shared memory is the host's",
        "the-guest-cannot-be-read-or-written": "process 1 is the host's, and its user may be the same",
        "the-guest-cannot-be-killed-stopped-or-traced": "commands run as the guest's user",
        "there-is-no-network": "the network is the host's",
        "nobody-in-it-has-privileges": "commands run as this user, with all its rights",
        "nobody-makes-namespaces": "commands run as this user, with all its rights",
        "a-second-user-is-kept-apart": "it has the host's capabilities, and none if not root",
    },
}
"""For each kind of box, the checks that it is known to fail, as a dict: name of the check -> reason.

`podman` is rootless Podman. `process/…` are process boxes in their three namespace modes. Do not run a check
on a kind of box that is known to fail it: some checks would then harm this machine."""

__all__ = ["CHECKS", "KNOWN_GAPS", "Check", "Unmet", "run"]


async def run(check: Check, spec: BoxSpec, *, start: Start = open_box) -> None:
    """Starts a new box with the settings `spec` and the check's limits, and runs the check in it.

    `start` opens the box; replace it to test a variant of a provider. Raises Unmet if the check failed.
    """
    limits = spec.limits.model_copy(update=check.limits)
    changes = {"limits": limits, "scratch": ("/scratch",), "second_user": check.second_user}
    async with await start(spec.model_copy(update=changes)) as box:
        await check.play(box)
