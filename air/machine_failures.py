"""Decides whether an exception proves that the machine failed, and not code that an agent can make fail."""

from __future__ import annotations

import asyncio
import errno
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
"""The error numbers of the operating system that say that the machine or its network failed. Other error
numbers, such as ENOENT, follow from the arguments of a call."""
_MACHINE_ERRORS = (
    InfrastructureError,
    ConnectionError,
    TimeoutError,
    asyncio.IncompleteReadError,
    socket.gaierror,
    ssl.SSLError,
)


def is_machine_failure(error: BaseException) -> bool:
    """Whether an exception proves that the machine, its network or air failed. It does if it is, or was
    raised because of, an InfrastructureError, a lost connection, a time-out, a host name without an address,
    a failure of TLS, or an error of the operating system such as a full disk. Errors about a path, such as
    FileNotFoundError, prove nothing: code may have got the path from an agent."""
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
