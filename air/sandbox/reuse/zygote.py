"""The `sitecustomize` module of a Python that the guest has started in advance; it forks that Python.

The guest starts the image's own Python once per box, with the final command line (`python3 main.py`). While
that Python starts, it imports this module, which does not return: it waits for orders, and forks a process
for each. Only in the fork does the import end, so the interpreter itself goes on to run the script, as if it
had just been started. Or the fork executes another program.

The original process is root with few capabilities and never sees a request: the fork receives its job on a
socket of its own, after it has become the user of commands. Standard library only, any Python >= 3.8.
"""

# ruff: noqa: PTH112
from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CONTROL, PROGRAM = 3, 4
"""The file descriptors of the socket to the guest, and of the zip file that contains this module."""
PATH = f"/proc/self/fd/{PROGRAM}"
JOB_BYTES = 1 << 16
"""Maximum size of a job. The guest runs larger ones without this program."""
NICER = 5
PR_SET_DUMPABLE, PR_CAPBSET_DROP = 4, 24
STARTED, READY, FAILED = b"started", b"ready", b"failed"


def main() -> None:
    """Waits for orders. Returns only in a forked process whose job is to run this interpreter's script."""
    try:
        real = _real_sitecustomize()
        known = set(sys.modules) - {"__future__"}  # which only this module imports
        prctl = _prctl()
        for capability in range(64):
            if prctl(PR_CAPBSET_DROP, capability):
                break  # past the last capability
        _freeze()
        _work(prctl)
        for name in set(sys.modules) - known:
            del sys.modules[name]
        _renew_main()
    except BaseException:  # this process must never run the script
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    if not real:
        raise ImportError("there is no other one", name="sitecustomize")


def _prctl() -> Any:
    """Returns the system call `prctl`. The package `ctypes` would cost more memory."""
    import _ctypes

    library = _ctypes.dlopen(None, 2)  # type: ignore[arg-type]
    call, address = _ctypes.call_function, _ctypes.dlsym(library, "prctl")
    return lambda option, value: call(address, (option, value, 0, 0, 0))


def _real_sitecustomize() -> bool:
    """Undoes what made Python import this module, and imports the image's own `sitecustomize`.

    Returns whether the image has one.
    """
    import zipimport

    sys.path.remove(PATH)
    sys.path_importer_cache.pop(PATH, None)
    getattr(zipimport, "_zip_directory_cache", {}).pop(PATH, None)
    os.close(PROGRAM)
    this = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = this  # the import that runs now expects it
        return False
    return True


def _freeze() -> None:
    """Keeps garbage collections of forks from writing into, and so copying, the memory that they share."""
    import gc

    gc.freeze()


def _renew_main() -> None:
    """Replaces the module that the script will fill: garbage collections skip what was frozen, and so would
    not call the destructors of the script's objects at its end."""
    old = sys.modules["__main__"]
    new = sys.modules["__main__"] = type(sys)("__main__")
    new.__dict__.update(old.__dict__)
    if "__annotations__" in new.__dict__:
        new.__annotations__ = {}


def _work(prctl: Any) -> None:
    """Forks a process for each order of the guest; returns in a fork that shall run the script."""
    import _socket

    control = _socket.socket(fileno=CONTROL)
    os.set_inheritable(CONTROL, False)
    control.send(STARTED)
    while True:
        order, sent = control.recvmsg(16, _socket.CMSG_SPACE(4), _socket.MSG_CMSG_CLOEXEC)[:2]
        if not order:
            os._exit(0)
        fd = int.from_bytes(sent[0][2][:4], sys.byteorder)
        pid = os.fork()
        if not pid:
            control.close()
            return _take_job(_socket.socket(fileno=fd), int(order), prctl)
        os.close(fd)
        control.send(b"%d" % pid)
        control.send(b"%d %d" % os.waitpid(pid, 0))


def _take_job(jobs: Any, uid: int, prctl: Any) -> None:
    """Becomes the user `uid`, kills all other processes of that user, and waits for a job on a socket.

    Returns if the job is to run the script. A change of user makes a process undumpable, so until then no
    process of the same user can trace this one.
    """
    import _socket

    _become(uid)
    jobs.send(READY)
    data, sent = jobs.recvmsg(JOB_BYTES, _socket.CMSG_SPACE(12), _socket.MSG_CMSG_CLOEXEC)[:2]
    if not data:
        os._exit(0)
    streams = [int.from_bytes(sent[0][2][at : at + 4], sys.byteorder) for at in (0, 4, 8)]
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
        os.close(fd)
    kind, cwd, count, *texts = data.split(b"\0")
    argv, env = texts[: int(count)], dict(text.split(b"=", 1) for text in texts[int(count) :])
    try:
        os.chdir(cwd)
        if kind == b"script" and not _has_own_site():
            jobs.close()
            os.environ.clear()
            os.environ.update({os.fsdecode(name): os.fsdecode(env[name]) for name in env})
            prctl(PR_SET_DUMPABLE, 1)  # otherwise its own /proc entries would belong to root
            return
        _execute(argv, env)
    except BaseException as error:
        jobs.send(FAILED)
        text = getattr(error, "strerror", None) or str(error)
        os.write(
            2, f"air: cannot run {os.fsdecode(argv[0])!r}: {text}\n".encode("utf-8", "replace")
        )
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def _become(uid: int) -> None:
    """Makes this fork a process of the user `uid` without capabilities, the only one of that user."""
    import _signal  # type: ignore[import-not-found]

    os.setsid()
    score = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    os.write(score, b"1000")  # if memory runs out, the kernel ends it before the guest
    os.close(score)
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    os.nice(NICER)
    try:  # noqa: SIM105 — contextlib would stay imported in the script
        os.kill(-1, _signal.SIGKILL)
    except ProcessLookupError:
        pass


def _has_own_site() -> bool:
    """Whether the workspace has packages of its own, which Python adds to its path only at its start."""
    import site

    return bool(site.ENABLE_USER_SITE and site.USER_SITE and os.path.isdir(site.USER_SITE))


def _execute(argv: Any, env: Any) -> None:
    """Executes a program in place of this process. Python ignores two signals, which the program must not."""
    import _signal

    for number in (_signal.SIGPIPE, _signal.SIGXFSZ):
        _signal.signal(number, _signal.SIG_DFL)
    os.execvpe(argv[0], argv, env)


if __name__ == "sitecustomize":
    main()
