"""The users of a box: the guest is another user than its commands, so no command can harm the guest.

The kernel lets a process limit, reschedule or signal the processes of its own user. A box starts as root with
few capabilities. The guest becomes the user `GUEST_UID`, each command the user `INSIDE_UID`. The box's files
belong to the latter, and the guest opens them with the rights of that user only. Standard library only,
Python >= 3.8, no import of `air`.
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
"""The user id of an agent's commands and files, and that of the guest beside them."""
KILL, SETGID, SETUID, SETPCAP, SYS_RESOURCE = 5, 6, 7, 8, 24
KEPT = (KILL, SETGID, SETUID, SYS_RESOURCE)
"""The capabilities that a guest keeps, and commands in a grader's box. SYS_RESOURCE serves only to fix the
order in which the kernel ends processes if memory runs out; not every engine can grant it."""
ROOTS = (0, 1, 3, 4, KILL, SETGID, SETUID, 10)
"""The capabilities of root's commands in an open box: CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID,
SETUID and NET_BIND_SERVICE. All of them only concern what is in the box."""
COMMAND_SCORE, GRADER_SCORE = b"1000", b"500"
"""The `oom_score_adj` of commands, and of those in a grader's box, which should outlive the agent's code. If
memory runs out, the kernel ends the processes with the highest one first; the guest has 0."""
PR_GET_PDEATHSIG, PR_SET_KEEPCAPS, PR_CAPBSET_DROP = 2, 8, 24
_VERSION_3 = 0x2008_0522
_LIBC = ctypes.CDLL(None, use_errno=True)


def become_guest(commands: int, roots: Collection[int] = ()) -> None:
    """Makes this process, which is root, the guest of a box whose commands run as the user `commands`.

    If `commands` is 0 in a grader's box, the guest remains root. It keeps the capabilities `KEPT`; commands
    can have none, or these if they are root. In an open box, commands that are root have the capabilities
    `roots`, and so has the guest. The caller must have the capability SETPCAP.
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
    open_files_as(0)  # the kernel takes root's rights to files away when a process leaves this user
    open_files_as(commands)
    prctl(PR_SET_PDEATHSIG, signal_of_death.value)  # a change of user has unset it


def give_folders(folders: list[str], uid: int) -> None:
    """Makes `uid` the owner of these folders, unless it is. Podman mounts them as root's."""
    for folder in folders:
        if os.stat(folder).st_uid != uid:
            os.chown(folder, uid, uid)


def become_command(commands: int | None, account: Any = None) -> None:
    """Makes this fork of the guest a process of the user `commands`, for good; None: of the guest's user.

    In an open box, it becomes a process of the `accounts.Account` instead.

    If memory runs out, the kernel ends it before the guest. If the guest has the capability SYS_RESOURCE, no
    command can change that. It has the guest's capabilities, so that no command can trace it and read the
    guest's memory, until it executes a program, which has none.
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
    """Makes this process open files, also those of processes in /proc, with the rights of the user `uid`."""
    open_files_of(uid, uid)


def open_files_of(uid: int, gid: int) -> None:
    """Does what `open_files_as` does, for a user whose group has another number."""
    for call, ident in ((_LIBC.setfsgid, gid), (_LIBC.setfsuid, uid)):
        call(ident)
        if call(ident) != ident:  # it returns the former id, and no error
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


def limit_capabilities(numbers: Collection[int]) -> None:
    """Gives up, for all programs that this process and its children execute, all capabilities but these."""
    for number in range(64):
        if number not in numbers and _LIBC.prctl(PR_CAPBSET_DROP, number, 0, 0, 0):
            return  # past the last capability


def keep_capabilities(numbers: Collection[int]) -> None:
    """Gives up all capabilities of this process but these, as far as it has them."""
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)()
    _call(_LIBC.capget, header, sets)
    kept = sets[1] & sum(1 << number for number in numbers)
    _call(_LIBC.capset, header, (ctypes.c_uint32 * 6)(kept, kept, 0, 0, 0, 0))


def _call(function: Any, *arguments: Any) -> None:
    if function(*arguments):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
