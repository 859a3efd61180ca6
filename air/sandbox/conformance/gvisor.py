"""The conformance checks that boxes in gVisor are known to fail, found with the gVisor of Debian 12 (the
package `runsc`, of December 2022) on Linux 6.18. A newer gVisor may fail fewer of them."""

from __future__ import annotations

_NAMES = {
    "this gVisor refuses a flag of the system call `statx`, so `ls` and `stat` of Debian 12 fail": (
        "a-command-gets-nothing-but-its-streams",
        "a-copy-leaves-the-box-alive",
        "a-folder-goes-in-and-comes-out",
        "a-kept-box-is-as-its-image",
        "a-second-user-is-kept-apart",
        "files-of-an-open-box-are-those-of-the-named-user",
        "links-are-not-followed",
        "output-is-never-taken-for-an-answer",
        "there-is-no-network",
        "what-is-written-is-read",
    ),
    "commands can read the guest's environment, in which nothing is secret": (
        "root-of-a-kept-box-reaches-neither-out-nor-the-guest",
        "root-of-an-open-box-reaches-neither-out-nor-the-guest",
        "the-guest-cannot-be-read-or-written",
    ),
    "what the check reads in /proc or in the control groups is missing in gVisor": (
        "a-command-begins-with-no-signal-blocked-or-ignored",
        "an-endless-environment-does-not-end-the-guest",
        "nobody-in-it-has-privileges",
        "the-kernel-keeps-the-limits",
        "writable-folders-take-no-setuid-program-and-no-device",
    ),
    "gVisor refuses the system call with which the check attacks": (
        "a-name-that-is-swapped-while-it-is-read-leads-nowhere",
        "a-second-user-cannot-limit-or-reschedule-the-guest",
        "the-guest-cannot-be-rescheduled",
        "spinning-processes-do-not-keep-the-guest-from-answering",
    ),
    "memory is counted for the whole box, so that its end is the end of the box": (
        "memory-in-small-pieces-does-not-end-the-guest",
        "memory-is-bounded",
        "memory-of-many-processes-is-bounded",
        "memory-that-outlives-its-process-is-bounded",
        "shared-memory-does-not-outlive-its-process",
    ),
    "gVisor's own threads count as processes, and its own work as work of the box": (
        "a-fork-bomb-is-bounded",  # it ends the box
        "cpu-is-bounded",
        "there-are-no-more-processes-than-allowed",
        "with-no-process-left-files-are-still-served",
    ),
    "gVisor's file systems in memory do not limit the number of files": (
        "empty-files-are-bounded",
        "no-entry-operation-leaves-a-closed-box",
    ),
    "processes may make namespaces, which are gVisor's, not this machine's": (
        "nobody-makes-namespaces",
    ),
    "the check was not over in time: locks, terminals and waiting processes behave otherwise in gVisor": (
        "a-lock-on-standard-input-keeps-other-commands-out",
        "a-process-that-waits-in-the-kernel-does-not-keep-a-box-from-freezing",
        "a-program-whose-first-thread-has-ended-stands-still-in-a-frozen-box",
        "a-terminal-is-one",
        "commands-run-at-once",
    ),
    "air refuses: the engine does not see the changes of gVisor's containers": (
        "the-engine-finds-what-commands-changed",
    ),
}

GAPS = {name: reason for reason, names in _NAMES.items() for name in names}
"""{name of the check: reason}. Snapshots are not in it: they are mounted into a running container, which
needs `runc`."""
