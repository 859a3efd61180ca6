"""The `sitecustomize` module of a Python that the guest has started in advance; it forks that Python.

The guest starts the image's own Python once per box, with the final command line (`python3 main.py`). While
that Python starts, it imports this module, which does not return: it waits for orders, and forks a process
for each. Only in the fork does the import end, so the interpreter itself goes on to run the script, as if it
had just been started. Or the fork executes another program. A fork shares its memory until it changes it, and
each page that it copies then takes as long as thousands of instructions: so this module does little in it.

The original process is root with few capabilities and never sees a request: the fork receives its job on a
socket of its own, after it has become the user of commands. Standard library only, any Python >= 3.8.
"""

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
        prctl, leave = _calls("prctl", "exit")
        for capability in range(64):
            if prctl(PR_CAPBSET_DROP, capability, 0, 0, 0):
                break  # past the last capability
        _end_quickly(known, leave)
        work = _worker(prctl)
        # All that can be done before a fork is: each change in a fork copies a page of memory.
        _freeze(known)
        _renew_main()
        work()
    except BaseException:  # this process must never run the script
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    if not real:
        raise ImportError("there is no other one", name="sitecustomize")


def _calls(*names: str) -> Any:
    """Returns functions of the C library. The package `ctypes` would cost more memory."""
    import _ctypes

    library, call = _ctypes.dlopen(None, 2), _ctypes.call_function  # type: ignore[arg-type]
    addresses = [_ctypes.dlsym(library, name) for name in names]
    return [lambda *values, at=address: call(at, values) for address in addresses]


def _end_quickly(known: set[str], leave: Any) -> None:
    """Lets a script that has come to its end call `leave` before Python dismantles the modules `known`.

    To dismantle them changes, and so copies, nearly all memory that a fork shares, only to give it back. By
    then all that a script can see of its end has happened: threads have ended, the functions of `atexit` have
    run, its own and its imported modules are dismantled, in Python's usual order and by Python itself.

    Python ends as usual after an exception or `sys.exit`, if the script imported a module that is not
    Python's own (its library may have work to do), if it put something into one of the modules `known`, or if
    anything else that ends later still uses a name of the script.
    """
    if not (3, 10) <= sys.version_info[:2] <= (3, 13):  # how these end is known
        return
    import atexit

    standard, module_type, ref = sys.stdlib_module_names, type(sys), sys.modules["_weakref"].ref
    sizes = {name: len(vars(sys.modules[name])) for name in known - {"__main__"}}
    sizes["site"] = 0  # it still runs
    kept: list[Any] = []
    kept.append(kept)  # nothing frees what is in it: garbage collections skip what was frozen

    class Mark:
        """Lives as long as the names of the script."""

    class End:
        """Leaves when it is destroyed."""

        def __init__(self, main: Any, mark: Mark) -> None:
            self.main, self.mark = ref(main), ref(mark)

        def __del__(self) -> None:
            # They would be dismantled later. The names outlive their module if, for instance, a signal's
            # handler is a function of the script.
            if self.main() is not None or self.mark() is not None:
                return
            try:
                for stream in (sys.stdout, sys.stderr):
                    if stream is not None and not stream.closed:
                        stream.flush()
            except Exception:  # Python, which flushes them as well, says so and ends as usual
                return
            leave(0)

    def at_end() -> None:
        modules = sys.modules
        main = modules.get("__main__")
        if type(main) is not module_type or hasattr(sys, "last_type"):
            return
        if "__file__" in vars(main) or "__cached__" in vars(main):
            return  # Python removes these two when the script has come to its end
        before, after = {}, {}
        for name, module in modules.items():
            if type(name) is not str:
                return
            if name in sizes:
                if type(module) is not module_type or sizes[name] not in (0, len(vars(module))):
                    return
                before[name] = module
            elif name == "__main__":
                before[name] = module
            elif name.partition(".")[0] in standard:
                after[name] = module
            else:
                return
        end = module_type("end")
        mark = vars(main)[""] = Mark()
        vars(end)["end"] = End(main, mark)
        kept.append([end, *(each for each in before.values() if each is not main)])
        modules.clear()
        modules.update(before)
        modules[""] = end  # Python dismantles what follows first
        modules.update(after)

    atexit.register(at_end)


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


def _freeze(known: set[str]) -> None:
    """Forgets all modules but those `known`, and keeps garbage collections of forks from writing into, and so
    copying, the memory that they share."""
    import gc

    for name in set(sys.modules) - known:
        del sys.modules[name]
    gc.freeze()


def _renew_main() -> None:
    """Replaces the module that the script will fill: garbage collections skip what was frozen, and so would
    not call the destructors of the script's objects at its end."""
    old = sys.modules["__main__"]
    new = sys.modules["__main__"] = type(sys)("__main__")
    new.__dict__.update(old.__dict__)
    if "__annotations__" in new.__dict__:
        new.__annotations__ = {}


def _worker(prctl: Any) -> Any:
    """Returns a function that forks a process for each order of the guest. It returns in a fork that shall
    run the script."""
    import _signal  # type: ignore[import-not-found]
    import _socket

    family, kind = _socket.AF_UNIX, _socket.SOCK_SEQPACKET
    room, flags = _socket.CMSG_SPACE(12), _socket.MSG_CMSG_CLOEXEC
    own = os.environ.pop("PYTHONPATH").partition(":")[2]  # its first entry is PATH
    os.environ.update({"PYTHONPATH": own} if own else {})
    packages = _own_packages()
    control = _socket.socket(family, kind, 0, CONTROL)
    os.set_inheritable(CONTROL, False)

    def work() -> None:
        control.send(STARTED)
        while True:
            order, sent = control.recvmsg(16, room, flags)[:2]
            if not order:
                os._exit(0)
            fd, uid = int.from_bytes(sent[0][2][:4], sys.byteorder), int(order)
            pid = os.fork()
            if not pid:
                os.close(CONTROL)
                return take_job(_socket.socket(family, kind, 0, fd), uid)
            os.close(fd)
            control.send(b"%d" % pid)
            control.send(b"%d %d" % os.waitpid(pid, 0))

    def take_job(jobs: Any, uid: int) -> None:
        """Becomes the user `uid`, kills all other processes of that user, and waits for a job on a socket.

        Returns if the job is to run the script. A change of user makes a process undumpable, so until then
        no process of the same user can trace this one.
        """
        _become(uid, _signal.SIGKILL)
        jobs.send(READY)
        data, sent = jobs.recvmsg(JOB_BYTES, room, flags)[:2]
        if not data:
            os._exit(0)
        for number in range(3):
            fd = int.from_bytes(sent[0][2][4 * number : 4 * number + 4], sys.byteorder)
            os.dup2(fd, number)
            os.close(fd)
        job, name, value, *command = data.split(b"\0")
        # With packages in the workspace, which Python adds to its path only at its start, it starts anew.
        if job == b"script" and not (packages and os.access(packages, os.F_OK)):
            jobs.close()
            os.environ[name.decode()] = value.decode()
            prctl(
                PR_SET_DUMPABLE, 1, 0, 0, 0
            )  # otherwise its own /proc entries would belong to root
            return
        for number in (_signal.SIGPIPE, _signal.SIGXFSZ):  # Python ignores them, programs must not
            _signal.signal(number, _signal.SIG_DFL)
        _execute(jobs, command)

    return work


def _become(uid: int, kill: int) -> None:
    """Makes this fork a process of the user `uid` without capabilities, the only one of that user."""
    os.setsid()
    score = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    os.write(score, b"1000")  # if memory runs out, the kernel ends it before the guest
    os.close(score)
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    os.nice(NICER)
    try:  # noqa: SIM105 — contextlib would stay imported in the script
        os.kill(-1, kill)
    except ProcessLookupError:
        pass


def _own_packages() -> str:
    """Returns the folder in the workspace from which Python would import packages; empty if there is none."""
    import site

    return str(site.USER_SITE) if site.ENABLE_USER_SITE and site.USER_SITE else ""


def _execute(jobs: Any, command: list[bytes]) -> None:
    """Executes a program in place of this process, or tells the guest on the socket `jobs` that it cannot."""
    cwd, count, *texts = command
    argv, env = texts[: int(count)], dict(text.split(b"=", 1) for text in texts[int(count) :])
    try:
        os.chdir(cwd)
        os.execvpe(argv[0], argv, env)
    except BaseException as error:
        jobs.send(FAILED)
        text = getattr(error, "strerror", None) or str(error)
        os.write(
            2, f"air: cannot run {os.fsdecode(argv[0])!r}: {text}\n".encode("utf-8", "replace")
        )
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


if __name__ == "sitecustomize":
    main()
