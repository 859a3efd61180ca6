"""Runs the command of `air box exec` in a running container, no matter which process started the box.

Unlike the box's other commands, this command is started by the container engine and not by the guest (air's
program in the box): as the user of the box's commands, in the workspace, without network, and without
`BoxSpec.env`, which only the process that started the box knows. In an open box, a user id that the image's
`/etc/passwd` lacks gets the group 0 here. The command shares the container's limits with the agent's
commands. If memory runs out, the kernel kills the command before the guest.
"""

from __future__ import annotations

import os
import secrets
import select
import signal
import socket
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from air.errors import BoxDiedError, UsageError
from air.sandbox.contract import ownership
from air.sandbox.contract.box import WORKSPACE, BoxLimits, BoxSpec
from air.sandbox.guest.users import INSIDE_UID
from air.sandbox.wire.demultiplexer import STDERR, STDOUT, Demultiplexer
from air.sandbox.wire.guest_box import MOST_FILES, base_env

BOUND = f"{{ ulimit -Sn {MOST_FILES} && ulimit -Hn {MOST_FILES}; ulimit -Sc 0; ulimit -Hc 0; }} 2>/dev/null"
"""Shell code that limits the open files and core dumps of a command of `air box exec`. The limits are those
that other commands of the box inherit from the guest (air's program in the box). It sets soft limits first,
because a hard limit may not be set below its soft limit."""
_MARK = "AIR_ATTACH"
_BECOME = f'{BOUND}; {{ echo 1000 >/proc/self/oom_score_adj; }} 2>/dev/null; exec "$@"'
_END = (
    f"{BOUND}; "
    'for p in /proc/[0-9]*; do [ "$p" != "/proc/$$" ] && tr "\\0" "\\n" <$p/environ 2>/dev/null'
    ' | grep -qx "$1" && kill -9 "${p#/proc/}"; done 2>/dev/null'
)


def run(
    container: str,
    argv: list[str],
    *,
    interactive: bool = False,
    show: Callable[[int, bytes], None] | None = None,
) -> int:
    """Runs a command in a container, passes on the command's output as it comes, and returns its exit code.

    `container` is the container's name or id. If `interactive` is true, the command gets this process's
    standard input, and a terminal if this process has a terminal. Otherwise the command's standard input is
    empty. Each piece of output is passed to `show` with the number 1 (standard output) or 2 (standard
    error). If `show` is None, the output is printed. An interrupt (Ctrl-C) kills the command and raises
    KeyboardInterrupt.

    Raises:
        MissingError: no container engine answers.
        UsageError: the container is not running.
        BoxDiedError: the box ended while the command ran.
        BoxStartError: the container engine failed.
    """
    from air.sandbox.docker import engine

    terminal = interactive and sys.stdin.isatty() and sys.stdout.isatty()
    mark = secrets.token_hex(8)
    with engine.translating("running a command in a box"):
        client = engine.client()
        description = client.inspect_container(container)
        name = description["Name"].lstrip("/")
        if not description["State"]["Running"]:
            state = description["State"]["Status"]
            raise UsageError(f"box {name} does not run ({state})", remedy="see `air box ls`")
        labels = description["Config"]["Labels"]
        user = labels.get(ownership.USER_LABEL, f"{INSIDE_UID}:{INSIDE_UID}")
        exec_id = client.exec_create(
            container,
            ["sh", "-c", _BECOME, "air", *argv],
            stdin=interactive,
            tty=terminal,
            workdir=labels.get(ownership.WORKSPACE_LABEL, WORKSPACE),
            user=user,
            environment=_env(description) | {_MARK: mark},
        )["Id"]
        stream = client.exec_start(exec_id, tty=terminal, socket=True)
        try:
            show = show or _show
            with _raw(client, exec_id) if terminal else nullcontext():
                _talk(stream, show, interactive=interactive, terminal=terminal)
        except BaseException:  # mainly for an interrupt: without this, the command would continue
            end = ["sh", "-c", _END, "air", f"{_MARK}={mark}"]
            client.exec_start(client.exec_create(container, end, user=user)["Id"], detach=True)
            raise
        finally:
            stream._response.close()
            stream.close()
        return _code(client, exec_id, name)


def _env(description: dict[str, Any]) -> dict[str, str]:
    """Returns the environment variables of the box's commands, without those of `BoxSpec.env`. `description`
    is the container engine's description of the container."""
    cpus = description["HostConfig"].get("NanoCpus") or 1e9
    return base_env(BoxSpec(limits=BoxLimits(cpus=cpus / 1e9)))


def _code(client: Any, ident: str, name: str) -> int:
    from docker.errors import NotFound

    try:
        state = client.exec_inspect(ident)
        client.inspect_container(state["ContainerID"])
    except NotFound:
        raise BoxDiedError(f"box {name} ended meanwhile") from None
    if state["Running"] or state["ExitCode"] is None:
        raise BoxDiedError(f"box {name}: the Docker engine went away while a command ran")
    return int(state["ExitCode"])


def _talk(
    stream: Any, show: Callable[[int, bytes], None], *, interactive: bool, terminal: bool
) -> None:
    """Passes the output of a command of `air box exec` to `show` until the command ends. If `interactive` is
    true, also passes standard input to the command. `terminal` says whether the command has a terminal: its
    output is then not divided into standard output and standard error.

    The output is read from the Docker client's buffer, because the first bytes of output may have arrived
    together with the HTTP headers.
    """
    stream._sock.settimeout(None)  # a command may be silent for hours
    output = stream._response.raw._fp.fp
    with _fed(stream._sock) if interactive else nullcontext():
        if terminal:
            while data := output.read1(1 << 16):
                show(STDOUT, data)
            return
        demultiplexer = Demultiplexer()
        while data := output.read1(1 << 16):
            for number, part in demultiplexer.feed(data):
                show(STDERR if number == STDERR else STDOUT, part)


def _show(number: int, data: bytes) -> None:
    stream = sys.stderr.buffer if number == STDERR else sys.stdout.buffer
    stream.write(data)
    stream.flush()


@contextmanager
def _fed(sock: Any) -> Iterator[None]:
    """Context manager: during the block, copies this process's standard input to `sock`, the socket of the
    command. Input that comes after the block is not read."""
    over, end = os.pipe()
    thread = threading.Thread(target=_feed, args=(sock, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        os.close(end)
        thread.join()
        os.close(over)


def _feed(sock: Any, over: int) -> None:
    """Copies this process's standard input to the socket `sock`. Stops when the input ends, or when the pipe
    with the reading end `over` (a file descriptor) has been closed at its writing end."""
    stdin = sys.stdin.fileno()
    try:
        while over not in (ready := select.select([stdin, over], [], [])[0]):
            data = os.read(stdin, 1 << 16) if ready else b""
            if not data:
                sock.shutdown(socket.SHUT_WR)
                return
            sock.sendall(data)
    except OSError:
        return  # the command has ended


@contextmanager
def _raw(client: Any, ident: str) -> Iterator[None]:
    """Context manager: puts this process's terminal in raw mode, and keeps the terminal of the command at the
    same size. `ident` is the container engine's id of the command."""

    def resize(*_: object) -> None:
        rows, columns = termios.tcgetwinsize(sys.stdout.fileno())
        client.exec_resize(ident, height=rows, width=columns)

    before = termios.tcgetattr(sys.stdin.fileno())
    handler = signal.signal(signal.SIGWINCH, resize)
    try:
        tty.setraw(sys.stdin.fileno(), termios.TCSADRAIN)  # keeps input that was typed ahead
        resize()
        yield
    finally:
        termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, before)
        signal.signal(signal.SIGWINCH, handler)
