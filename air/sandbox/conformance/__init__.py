"""The conformance suite: tests that start a real box (an isolated place to run commands) and check whether it
keeps the promises of the interface `Box`.

Every kind of box must pass the suite, except for the checks that `KNOWN_GAPS` lists for this kind. Checks
with `Check.container` test isolation that only containers promise; a process box (ordinary processes instead
of a container) isolates less.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from air.sandbox import open_box
from air.sandbox.conformance import (
    attacks,
    commands,
    file_transfer,
    guest_attacks,
    kept_files,
    limits,
    open_boxes,
    ports,
    read_write,
    running_commands,
    sessions,
    snapshots,
)
from air.sandbox.conformance.check import Check, Unmet
from air.sandbox.contract.box import Box, BoxSpec, OpenBox
from air.sandbox.guest import users
from air.sandbox.process import cgroups
from air.sandbox.process.namespaces import counts_by_namespace

Start = Callable[[BoxSpec], Awaitable[Box]]

CHECKS: tuple[Check, ...] = (
    *commands.CHECKS,
    *running_commands.CHECKS,
    *open_boxes.CHECKS,
    *kept_files.CHECKS,
    *read_write.CHECKS,
    *file_transfer.CHECKS,
    *snapshots.CHECKS,
    *sessions.CHECKS,
    *attacks.CHECKS,
    *guest_attacks.CHECKS,
    *ports.CHECKS,
    *limits.CHECKS,
)
"""The conformance suite: all tests of whether a real box keeps the promises of the interface `Box`, ordered
by topic. Each kind of box must pass all of them except those that `KNOWN_GAPS` lists for it."""

LIMITS = frozenset(
    {
        "a-fork-bomb-is-bounded",
        "memory-is-bounded",
        "memory-of-many-processes-is-bounded",
        "memory-in-small-pieces-does-not-end-the-guest",
        "no-command-leaves-the-order-of-out-of-memory",
        "cpu-is-bounded",
        "shared-memory-does-not-outlive-its-process",
        "the-kernel-keeps-the-limits",
        "there-are-no-more-processes-than-allowed",
        "with-no-process-left-files-are-still-served",
    }
)
"""Names of the checks that pass only if the container engine enforces all resource limits of a box.

A rootless container engine (one that does not run as root) does this only if it may use the controllers of
cgroup v2; see `air.sandbox.docker.engine_support`.
"""


def _may_order() -> bool:
    """Whether a container engine on this machine can decide which processes the kernel kills first if memory
    runs out (see `users.KEPT`).

    The container engine needs the capability SYS_RESOURCE for this. Even root lacks this capability if the
    machine is itself a container.
    """
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    bounding = next(row.split()[1] for row in status.splitlines() if row.startswith("CapBnd"))
    return bool(int(bounding, 16) >> users.SYS_RESOURCE & 1)


_ORDER = "no-command-leaves-the-order-of-out-of-memory"
_PODMAN = {
    _ORDER: "only the host's root can fix the order",
    "empty-files-are-bounded": "its tmpfs takes no `nr_inodes`",
    "nobody-makes-namespaces": "its seccomp profile lets any process make a user namespace",
}
_NO_CPU = {
    "the-kernel-keeps-the-limits": "no control group of an engine, which would enforce all of them",
    "cpu-is-bounded": "no control group of the CPU: only the scheduler shares it out",
}
_NO_MEMORY = {
    "memory-of-many-processes-is-bounded": "no control group: memory is bounded for each process",
    "memory-in-small-pieces-does-not-end-the-guest": "no control group: the host's memory would be used up",
}
_UNCOUNTED = {
    "a-fork-bomb-is-bounded": "before Linux 5.14, the user's other processes would count, too",
    "with-no-process-left-files-are-still-served": "before Linux 5.14, `pids` does not hold",
}
_ROOTS = {
    _ORDER: "only the host's root can fix the order, and has no part in the start of a command",
    "only-the-named-folders-can-be-written": "/dev/shm can be, and the devices that every user may write",
}
_USERS = (
    "a-second-user-is-kept-apart",
    "a-second-user-cannot-limit-or-reschedule-the-guest",
    "the-guest-takes-no-limits-from-commands",
    "the-guest-cannot-be-rescheduled",
)
_OPEN = dict.fromkeys(
    (check.name for check in CHECKS if check.open),
    "only containers can be open boxes (`BoxSpec.open`)",
)
_TOGETHER = _NO_CPU | _ROOTS | _OPEN | ({} if counts_by_namespace() else _UNCOUNTED)

KNOWN_GAPS: dict[str, dict[str, str]] = {
    "docker": {} if _may_order() else {_ORDER: "the engine lacks the capability SYS_RESOURCE"},
    "podman": _PODMAN,
    "process/root": _TOGETHER | ({} if cgroups.find() else _NO_MEMORY),
    "process/user": _TOGETHER
    | _NO_MEMORY
    | dict.fromkeys(_USERS, "a user other than root has only one user for a box"),
    "process/plain": _NO_CPU
    | _NO_MEMORY
    | _ROOTS
    | _OPEN
    | dict.fromkeys(_USERS, "commands run as the guest's user")
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
        "memory-that-outlives-its-process-is-bounded": "message queues and semaphores are the host's",
        "the-guest-cannot-be-read-or-written": "process 1 is the host's, and its user may be the same",
        "the-guest-cannot-be-killed-stopped-or-traced": "commands run as the guest's user",
        "there-is-no-network": "the network is the host's",
        "nobody-in-it-has-privileges": "commands run as this user, with all its rights",
        "nobody-makes-namespaces": "commands run as this user, with all its rights",
        "a-second-user-is-kept-apart": "it has the host's capabilities, and none if not root",
    },
}
"""The conformance checks (tests of the interface `Box`) that each kind of box is known to fail: {kind of box:
{name of the check: reason}}.

The kind `podman` means containers of rootless Podman. The kinds `process/…` mean process boxes: with
namespaces that root has made, with namespaces that another user has made, or without namespaces. Do not run a
check on a kind of box that is known to fail it, because some checks would then harm this machine.
"""

__all__ = ["CHECKS", "KNOWN_GAPS", "Check", "Unmet", "run"]


async def run(check: Check, spec: BoxSpec, *, start: Start = open_box) -> None:
    """Starts a new box and runs the check (a test of the interface `Box`) in it. The box has the settings
    `spec`, except for the limits and the kind of box that the fields of `check` demand.

    `start` is the function that starts a box with given settings; pass another function to test a variant of
    a kind of box. Raises Unmet if the check fails.
    """
    limits = spec.limits.model_copy(update=check.limits)
    changes = {"limits": limits, "scratch": ("/scratch",), "second_user": check.second_user}
    changes |= {"open": OpenBox(keep=check.keep) if check.open else None}
    async with await start(spec.model_copy(update=changes)) as box:
        await check.play(box)
