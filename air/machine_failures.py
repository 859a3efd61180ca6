"""Decides whether an exception proves that the machine failed. Only such a failure may keep an episode out of
training. Other exceptions may come from code that an agent can make fail, and must not have this effect."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl

from air.errors import InfrastructureError

_MACHINE_ERRNOS = {
    errno.EAGAIN,
    errno.EDQUOT,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.EIO,
    errno.EMFILE,
    errno.ENETDOWN,
    errno.ENETUNREACH,
    errno.ENFILE,
    errno.ENOBUFS,
    errno.ENOMEM,
    errno.ENOSPC,
    errno.EROFS,
    errno.ESTALE,
}
"""The error numbers of the operating system (`errno`) which show that the machine or its network failed.
Other error numbers, such as ENOENT (no such file), depend on the arguments of the call."""
FULL_DISK = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT))
"""The texts by which the operating system says that a disk or a quota is full."""
_MACHINE_ERRORS = (
    InfrastructureError,
    ConnectionError,
    TimeoutError,
    asyncio.IncompleteReadError,
    socket.gaierror,
    ssl.SSLError,
)


def is_machine_failure(error: BaseException) -> bool:
    """Returns whether an exception proves that the machine, its network or air failed. It does if the
    exception, or an exception that led to it, is one of these: an InfrastructureError, a lost connection, a
    time-out, a host name without an address, a failure of TLS, or an error of the operating system such as a
    full disk. Errors about a path, such as FileNotFoundError, prove nothing, because the path may come from
    an agent."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        if _is_of_the_machine(one):
            return True
        # `raise … from None` hides the cause of an error of httpx, too.
        waiting += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions
    return False


def _is_of_the_machine(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno in _MACHINE_ERRNOS:
        return True
    return isinstance(error, _MACHINE_ERRORS)
