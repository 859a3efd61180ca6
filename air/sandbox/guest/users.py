"""The Unix users of a box (a sandbox). The guest, air's program in the box, runs as a different user from the
commands that it starts, so that no command can harm it.

The reason: the kernel lets a process limit, reschedule or signal the processes of its own user. A box starts
as root with few capabilities. The guest then becomes the user `GUEST_UID`, and runs each command as the user
`INSIDE_UID`. The user of the commands also owns the box's files, and the guest opens files with only the
rights of that user. Standard library only, Python >= 3.8, no import of `air`.
"""

# ruff: noqa: PTH116
# pathlib is not worth its import at every start of a box.
from __future__ import annotations

import ctypes
import errno
import os

from air.sandbox.guest.running_commands import PR_SET_DUMPABLE, PR_SET_PDEATHSIG, prctl

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

INSIDE_UID, GUEST_UID = 1000, 65532
"""Two user ids. `INSIDE_UID` is that of an agent's commands and files, `GUEST_UID` that of the guest (air's
program in the box, which runs the commands)."""
KILL, SETGID, SETUID, SETPCAP, SYS_RESOURCE = 5, 6, 7, 8, 24
KEPT = (KILL, SETGID, SETUID, SYS_RESOURCE)
"""The Linux capabilities (by number) that the guest, air's program in a box, keeps. Commands in a grader's
box have them, too. SYS_RESOURCE only serves to decide which processes the kernel kills first if memory runs
out. Not every container engine can grant it."""
ROOTS = (0, 1, 3, 4, KILL, SETGID, SETUID, 10)
"""The Linux capabilities of commands that run as root in an open box (`BoxSpec.open`): CHOWN, DAC_OVERRIDE,
FOWNER, FSETID, KILL, SETGID, SETUID and NET_BIND_SERVICE. They have no effect outside of the box."""
_FOR_FILES = sum(1 << number for number in (0, 1, 2, 3, 4, 9, 27))
"""The capabilities, one bit for each, that concern files: Linux takes them away while the user id for files
is not root's."""
COMMAND_SCORE, GRADER_SCORE = b"1000", b"500"
"""The values of `oom_score_adj` for commands in an agent's box, and for commands in a grader's box. If memory
runs out, the kernel kills the processes with the highest value first. The guest (air's program in the box)
has 0. A grader's commands have a lower value than the agent's code that they run, so that they outlive it."""
PR_GET_PDEATHSIG, PR_SET_KEEPCAPS, PR_CAPBSET_DROP = 2, 8, 24
_VERSION_3 = 0x2008_0522
_LIBC = ctypes.CDLL(None, use_errno=True)


def become_guest(commands: int, roots: Collection[int] = ()) -> None:
    """Turns this process, which is root, into the guest (air's program in a box) for commands with the user
    id `commands`.

    In an agent's box, the process becomes the user `GUEST_UID` and keeps the capabilities `KEPT`; commands
    get none. In a grader's box (`commands` is 0), it remains root, and its commands get the capabilities
    `KEPT`, too. In an open box, `roots` are the capabilities of commands that run as root; the process
    becomes `GUEST_UID` and keeps these capabilities as well. The caller must have the capability SETPCAP.
    """
    signal_of_death = ctypes.c_int()
    _call(_LIBC.prctl, PR_GET_PDEATHSIG, ctypes.byref(signal_of_death), 0, 0, 0)
    limit_capabilities(roots or (() if commands else KEPT))
    os.setgroups([])
    if commands or roots:
        prctl(PR_SET_KEEPCAPS, 1)
        os.setresgid(GUEST_UID, GUEST_UID, GUEST_UID)
        os.setresuid(GUEST_UID, GUEST_UID, GUEST_UID)
    keep_capabilities({*KEPT, *roots})
    open_files_as(
        0
    )  # when a process stops being root, the kernel takes away root's rights to files
    open_files_as(commands)
    prctl(PR_SET_PDEATHSIG, signal_of_death.value)  # again: the change of user has unset it


def give_folders(folders: list[str], uid: int) -> None:
    """Makes the user id `uid` the owner of each of these folders that has another owner. Needed because in
    Podman's containers, mounted folders belong to root."""
    for folder in folders:
        if os.stat(folder).st_uid != uid:
            os.chown(folder, uid, uid)


def become_command(commands: int | None, account: Any = None) -> None:
    """Turns this process, a fork of the guest (air's program in the box), into a process of the user id
    `commands`, for good. None means the guest's own user.

    In an open box, `account` (an `accounts.Account`) is the user instead. If memory runs out, the kernel
    kills this process before the guest; if the guest has the capability SYS_RESOURCE, no command can change
    that. Until the process executes a program, it has the guest's capabilities, so that no command can trace
    it and read the guest's memory. The executed program has none of them, unless it runs as root (in a
    grader's box or an open box).
    """
    if account:
        os.setgroups(account.groups)
        os.setresgid(account.gid, account.gid, account.gid)
        os.setresuid(account.uid, account.uid, account.uid)
    elif commands:
        os.setresgid(commands, commands, commands)
        os.setresuid(commands, commands, commands)
    prctl(PR_SET_DUMPABLE, 1)  # otherwise its own /proc entries would belong to root
    score = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    os.write(score, GRADER_SCORE if commands == 0 else COMMAND_SCORE)
    if commands or account:
        prctl(PR_SET_DUMPABLE, 0)


def open_files_as(uid: int) -> None:
    """Makes this process open files with the rights of the user id `uid`, also the files of processes in
    /proc."""
    open_files_of(uid, uid)


def open_files_of(uid: int, gid: int) -> None:
    """Makes this process open files with the rights of the user id `uid` and the group id `gid`. Raises
    PermissionError if the kernel refuses."""
    for call, ident in ((_LIBC.setfsgid, gid), (_LIBC.setfsuid, uid)):
        if (
            call(ident) < 0
        ):  # Linux always returns the former id; gVisor does not have this system call
            return _act_as(uid, gid)
        if call(ident) != ident:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


def _act_as(uid: int, gid: int) -> None:
    """Does what `open_files_of` says where the kernel is gVisor: changes the effective ids. The kernel then
    takes away or adds rights to files as it does on Linux when the ids for files change, but it takes away
    other capabilities, too: these are added again.

    On Linux, commands of the user `uid` could change this process's scheduling then. gVisor does not
    schedule by what they set.
    """
    prctl(PR_SET_KEEPCAPS, 1)
    os.setresgid(-1, gid, -1)
    os.setresuid(-1, uid, -1)
    held = _permitted()
    _set_capabilities(held & ~_FOR_FILES if uid else held, held)


def limit_capabilities(numbers: Collection[int]) -> None:
    """Removes all Linux capabilities except those with these `numbers` from this process's bounding set.
    Programs that this process and its children execute later can then have no other capabilities."""
    for number in range(64):
        if number not in numbers and _LIBC.prctl(PR_CAPBSET_DROP, number, 0, 0, 0):
            return  # past the last capability


def keep_capabilities(numbers: Collection[int]) -> None:
    """Gives up all capabilities of this process except `numbers`. Does not add capabilities that the process
    lacks."""
    kept = _permitted() & sum(1 << number for number in numbers)
    _set_capabilities(kept, kept)


def _permitted() -> int:
    """The capabilities that this process may use: bit n is set for the capability n (0 to 31)."""
    sets = (ctypes.c_uint32 * 6)()
    _call(_LIBC.capget, (ctypes.c_uint32 * 2)(_VERSION_3, 0), sets)
    return sets[1]


def _set_capabilities(effective: int, permitted: int) -> None:
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    _call(_LIBC.capset, header, (ctypes.c_uint32 * 6)(effective, permitted, 0, 0, 0, 0))


def _call(function: Any, *arguments: Any) -> None:
    if function(*arguments):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
