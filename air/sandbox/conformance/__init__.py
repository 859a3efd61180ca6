"""What every provider of boxes must hold to, as checks that run against a real box.

`CHECKS` lists them all; `run` plays one in a box of its own. A check that does not hold raises
`Unmet`. Checks marked `container` are about isolation, of which a process box has less: `KNOWN_GAPS`
says, by name, what does not hold where, and why.
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
"""Every check, in the order of reading."""

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
"""Checks that need an engine which holds boxes to their limits; see `held.unheld`. Rootless ones do so
where their user has the controllers of cgroup v2."""

_PODMAN = {
    "empty-files-are-bounded": "its tmpfs takes no `nr_inodes`",
    "nobody-makes-namespaces": "its seccomp profile lets anybody have a user namespace",
}
_NO_TOTALS = {
    "the-kernel-keeps-the-limits": "no control group, in which they would be kept",
    "cpu-is-bounded": "no control group: only the scheduler shares the CPU out",
    "memory-of-many-processes-is-bounded": "no control group: memory is bounded for each process",
}
_UNCOUNTED = {
    "a-fork-bomb-is-bounded": "before Linux 5.14, the user's other processes would count, too",
    "with-no-process-left-files-are-still-served": "before Linux 5.14, `pids` does not hold",
}
_ROOTS = {
    "only-the-named-folders-can-be-written": "/dev/shm can be, and the devices that anybody may write",
}
_TOGETHER = _NO_TOTALS | _ROOTS | ({} if counts_by_namespace() else _UNCOUNTED)

KNOWN_GAPS: dict[str, dict[str, str]] = {
    "docker": {},
    "podman": _PODMAN,
    "process/root": _TOGETHER,
    "process/user": _TOGETHER
    | {"a-second-user-is-kept-apart": "who is not root has one user to give to a box"},
    "process/plain": _NO_TOTALS
    | {
        "a-fork-bomb-is-bounded": "`pids` is not held: processes of one user are counted together",
        "with-no-process-left-files-are-still-served": "`pids` is not held, as above",
        "there-are-no-more-processes-than-allowed": "`pids` is not held, as above",
        "only-the-named-folders-can-be-written": "the host's folders are this user's",
        "writable-folders-take-no-setuid-program-and-no-device": "folders are the host's",
        "empty-files-are-bounded": "folders are the host's, as above",
        "full-disks-are-bounded-and-said": "folders are the host's; only single files are bounded",
        "a-forks-own-writes-are-bounded": "folders are the host's, as above",
        "shared-memory-does-not-outlive-its-process": "shared memory is the host's",
        "the-guest-cannot-be-read-or-written": "process 1 is the host's, and may be the same user's",
        "the-guest-cannot-be-killed-stopped-or-traced": "commands are the guest's own user",
        "there-is-no-network": "the network is the host's",
        "nobody-in-it-has-privileges": "commands are this user, with all its rights",
        "nobody-makes-namespaces": "commands are this user, with all its rights",
        "a-second-user-is-kept-apart": "it has the host's capabilities, and none if not root",
    },
}
"""By provider or variant of one (the process box by its mode, see `namespaces`; `podman` is the Docker
provider over the socket of rootless Podman), the checks that it is known not to pass, each with the
reason. They must not be played where they do not hold: some would harm the host."""

__all__ = ["CHECKS", "KNOWN_GAPS", "Check", "Unmet", "run"]


async def run(check: Check, spec: BoxSpec, *, start: Start = open_box) -> None:
    """Plays one check in a fresh box of `spec`, with the limits that the check asks for.

    Args:
        start: opens the box; for a variant of a provider.

    Raises:
        Unmet: the box does not hold to it.
    """
    limits = spec.limits.model_copy(update=check.limits)
    changes = {"limits": limits, "scratch": ("/scratch",), "second_user": check.second_user}
    async with await start(spec.model_copy(update=changes)) as box:
        await check.play(box)
