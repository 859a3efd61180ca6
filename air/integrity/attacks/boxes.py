"""Attacks on the box itself, the container or process in which an agent's commands run. They are those checks
of the conformance suite (air's tests that every kind of box must pass) in which a command attacks its own
box."""

from __future__ import annotations

from air.integrity.attack import Family
from air.sandbox.conformance import CHECKS
from air.sandbox.conformance.check import Check

_NAMES: dict[Family, tuple[str, ...]] = {
    "isolation": (
        "there-is-no-network",
        "nobody-in-it-has-privileges",
        "nobody-makes-namespaces",
        "a-second-user-is-kept-apart",
        "only-the-named-folders-can-be-written",
        "writable-folders-take-no-setuid-program-and-no-device",
        "a-command-gets-nothing-but-its-streams",
        "the-guest-cannot-be-read-or-written",
        "paths-lead-nowhere-else",
        "links-are-not-followed",
        "a-path-that-changes-meanwhile-leads-nowhere",
        "a-name-that-is-swapped-while-it-is-read-leads-nowhere",
        "only-regular-files-are-opened",
        "put-takes-no-links-and-writes-through-none",
        "get-takes-files-and-folders-only",
    ),
    "result forging": ("output-is-never-taken-for-an-answer",),
    "selective masking": (
        "the-guest-cannot-be-killed-stopped-or-traced",
        "the-guest-takes-no-limits-from-commands",
        "the-guest-cannot-be-rescheduled",
        "a-second-user-cannot-limit-or-reschedule-the-guest",
        "spinning-processes-do-not-keep-the-guest-from-answering",
        "memory-in-small-pieces-does-not-end-the-guest",
        "no-command-leaves-the-order-of-out-of-memory",
        "with-no-process-left-files-are-still-served",
        "an-endless-environment-does-not-end-the-guest",
        "out-of-memory-ends-commands-first",
    ),
    "resource attacks": (
        "a-fork-bomb-is-bounded",
        "processes-that-fork-and-leave-are-ended",
        "memory-is-bounded",
        "memory-of-many-processes-is-bounded",
        "memory-that-outlives-its-process-is-bounded",
        "shared-memory-does-not-outlive-its-process",
        "cpu-is-bounded",
        "full-disks-are-bounded-and-said",
        "empty-files-are-bounded",
        "open-files-are-bounded",
        "there-are-no-more-processes-than-allowed",
        "a-crash-leaves-no-core",
        "a-flood-of-small-commands-and-files",
        "a-file-that-grows-is-still-bounded",
        "get-is-bounded",
    ),
}
_BY_NAME = {check.name: check for check in CHECKS}
BOX_ATTACKS: tuple[tuple[Family, Check], ...] = tuple(
    (family, _BY_NAME[name]) for family, names in _NAMES.items() for name in names
)
"""The attacks on a box in which no task is played, as pairs (family, check). Each is a check of the
conformance suite, air's tests that every kind of box must pass."""
