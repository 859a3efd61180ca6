"""What proves that the machine failed: lost connections and full disks do, errors about a path do not."""

from __future__ import annotations

import asyncio
import errno
import socket

import httpx
import pytest

from air.errors import BoxFileError, BoxStartError
from air.machine_failures import is_machine_failure


@pytest.mark.parametrize(
    "error",
    [
        BoxStartError("no engine"),
        ConnectionRefusedError(errno.ECONNREFUSED, "refused"),
        BrokenPipeError(errno.EPIPE, "gone"),
        TimeoutError("no answer"),
        OSError(errno.ENOSPC, "the disk is full"),
        OSError(errno.EMFILE, "too many open files"),
        OSError(errno.EHOSTUNREACH, "no route"),
        socket.gaierror(socket.EAI_AGAIN, "no name server"),
        asyncio.IncompleteReadError(b"", 8),
        ExceptionGroup("two", [ValueError("x"), ConnectionResetError()]),
    ],
)
def test_failures_of_the_machine(error: Exception) -> None:
    assert is_machine_failure(error)


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "no such level"),
        PermissionError(errno.EACCES, "not yours"),
        OSError(errno.ENAMETOOLONG, "a long name"),
        OSError("not a picture"),
        RuntimeError("odd"),
        MemoryError(),
        RecursionError(),
        BoxFileError("no such file"),
        ExceptionGroup("one", [ValueError("x")]),
    ],
)
def test_errors_that_code_may_have_because_of_an_agent(error: Exception) -> None:
    assert not is_machine_failure(error)


def test_the_cause_counts_too() -> None:
    """A client package raises an error of its own because of a lost connection."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, but it does not listen
        port = unused.getsockname()[1]
        with pytest.raises(httpx.ConnectError) as caught:
            httpx.get(f"http://127.0.0.1:{port}", trust_env=False)
    assert not isinstance(caught.value, OSError)
    assert is_machine_failure(caught.value)


def test_an_error_that_is_its_own_cause_ends() -> None:
    error = ValueError("a circle")
    error.__cause__ = TypeError("of two")
    error.__cause__.__cause__ = error
    assert not is_machine_failure(error)
