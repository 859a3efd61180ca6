"""Makes forks of a Python interpreter that is started in advance, so that commands in a box begin sooner.

The guest (air's program inside a box, here a container) starts the image's own Python once per box, with the
final command line (such as `python3 main.py`). While that interpreter starts, it imports this module under
the name `sitecustomize`. The module makes Python call it once more at the end of its start, just before the
script. In the original process, that call never returns: the module waits for orders (messages of the guest
that request a fork), and makes one fork for each order. The fork then receives a job, which is a command to
run. If the job is the interpreter's script, the call returns in the fork, and the interpreter runs the script
as if it had just been started. If the job is another program, the fork executes that program.

A fork shares the memory of the original process until one of them changes it. Each memory page that must then
be copied takes as long as thousands of instructions, so this module does as little as possible after a fork.

The original process is root with few capabilities, and never sees a command. What the image lets Python
import at its start (its `sitecustomize` and `usercustomize`, and `.pth` files) runs in it, once. The fork
becomes the Unix user who runs commands, and then receives its job on a socket of its own. Standard library
only, any Python >= 3.8.
"""

# ruff: noqa: PTH100
# A script finds only the modules that Python itself has imported, so pathlib must not be imported here.
from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CONTROL, PROGRAM = 3, 4
"""Two file descriptor numbers: of the socket to the guest (air's program in the box), and of the zip file
from which Python imports this module."""
PATH = f"/proc/self/fd/{PROGRAM}"
JOB_BYTES = 1 << 16
"""Maximum size of a job (an encoded command) in bytes. The guest (air's program in the box) starts larger
commands in the usual way."""
NICER = 5
PR_SET_DUMPABLE, PR_CAPBSET_DROP = 4, 24
STARTED, READY, FAILED = b"started", b"ready", b"failed"


def main() -> None:
    """Prepares this interpreter to be the original process of all forks. If its command line names a script,
    the forks begin only when Python is about to open the script, so that the rest of Python's start is done
    once, and not in each fork; otherwise (`-c`, `-m`) they begin here. If the image has no module
    `sitecustomize` of its own, the function raises ImportError, as Python expects."""
    try:
        real = _real_sitecustomize()
        if sys.argv[0] in ("", "-", "-c", "-m") or not sys.path_hooks:
            _serve()
        else:
            _serve_before_script()
    except BaseException:  # this process must never run the script
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    if not real:
        raise ImportError("there is no other one", name="sitecustomize")


def _serve_before_script() -> None:
    """Makes Python call `_serve` at the end of its start, just before it opens the script.

    Python then asks the path hooks whether the script's file is an archive with a program. The function puts
    a hook in the place of the first one until then. The hook must not be added to the list instead, because
    Python stops with an error if the list becomes shorter meanwhile.
    """
    hooks, script = sys.path_hooks, os.path.abspath(sys.argv[0])
    first, waits = hooks[0], True

    def hook(path: str) -> Any:
        nonlocal waits
        if waits and os.path.abspath(path) == script:
            waits = False
            try:
                hooks[hooks.index(hook)] = first
                _serve()
            except BaseException:  # this process must never run the script
                sys.excepthook(*sys.exc_info())
                os._exit(1)
        return first(path)

    hooks[0] = hook


def _serve() -> None:
    """Waits for orders (messages of the guest, air's program in the box, that request a fork), and makes a
    fork for each. Each fork gets a command to run. The function returns only in a fork whose command is this
    interpreter's own script."""
    known = set(sys.modules) - {"__future__"}  # only this module imports `__future__`
    prctl, leave = _calls("prctl", "exit")
    for capability in range(64):
        if prctl(PR_CAPBSET_DROP, capability, 0, 0, 0):
            break  # past the last capability
    _end_quickly(known, leave)
    work = _worker(prctl)
    # Everything possible is done before a fork, because each change in a fork copies a page of memory.
    _freeze(known)
    _renew_main()
    work()


def _calls(*names: str) -> Any:
    """Returns a list with the functions of the C library that have these names. Does not import the package
    `ctypes`, because that would take more memory."""
    import _ctypes

    library, call = _ctypes.dlopen(None, 2), _ctypes.call_function  # type: ignore[arg-type]
    addresses = [_ctypes.dlsym(library, name) for name in names]
    return [lambda *values, at=address: call(at, values) for address in addresses]


def _end_quickly(known: set[str], leave: Any) -> None:
    """Makes a fork end faster after its script: the fork calls `leave`, the function `exit` of the C library,
    before Python destroys the modules `known`.

    `known` are the names of the modules that were imported before the fork. It would be useless to destroy
    these modules, and it would change, and so copy, nearly all memory that the fork shares. When `leave`
    is called, everything that a script can observe of its end has happened: threads have ended, the functions
    of `atexit` have run, and Python has destroyed the script's module and the modules that the script
    imported, in the usual order.

    Python ends in the usual way, without `leave`, in these cases: after an exception or `sys.exit`; if the
    script imported a module that is not in the standard library (its library may have work to do at the end);
    if the script put something into one of the modules `known`; or if anything that ends later still uses a
    name of the script.
    """
    if not (3, 10) <= sys.version_info[:2] <= (3, 13):  # it is known how these end
        return
    import atexit

    standard, module_type = sys.stdlib_module_names, type(sys)
    end_type, mark_type = _end_types(leave)
    sizes = {name: len(vars(sys.modules[name])) for name in known - {"__main__"}}
    sizes["site"] = 0  # not compared: `site` may still run
    kept: list[Any] = []
    kept.append(kept)  # a cycle, so its contents stay: garbage collections skip frozen objects

    def at_end() -> None:
        """Puts the modules into such an order that Python destroys first what the script made, and then the
        end that calls `leave`."""
        modules = sys.modules
        main = modules.get("__main__")
        if type(main) is not module_type or hasattr(sys, "last_type"):
            return
        if "__file__" in vars(main) or "__cached__" in vars(main):
            return  # Python removes both at the script's end: it is not there yet
        sorted_modules = _before_and_after(modules, sizes, standard)
        if sorted_modules is None:
            return
        before, after = sorted_modules
        end = module_type("end")
        mark = vars(main)[""] = mark_type()
        vars(end)["end"] = end_type(main, mark)
        kept.append([end, *(each for each in before.values() if each is not main)])
        modules.clear()
        modules.update(before)
        modules[""] = end  # Python destroys the modules after this one first
        modules.update(after)

    atexit.register(at_end)


def _before_and_after(
    modules: dict[str, Any], sizes: dict[str, int], standard: Any
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Divides the imported modules into those that existed before the fork (and the script's), which need not
    be destroyed, and those of the standard library that the script imported. `sizes` are the numbers of names
    in the former before the fork; 0 is not compared. Returns None if there is another module, or if one of
    the former has changed."""
    before, after = {}, {}
    for name, module in modules.items():
        if type(name) is not str:
            return None
        if name in sizes:
            if type(module) is not type(sys) or sizes[name] not in (0, len(vars(module))):
                return None
            before[name] = module
        elif name == "__main__":
            before[name] = module
        elif name.partition(".")[0] in standard:
            after[name] = module
        else:
            return None
    return before, after


def _end_types(leave: Any) -> tuple[Any, Any]:
    """Returns the classes `End` and `Mark`. A fork makes an object of each when its script has ended."""
    ref = sys.modules["_weakref"].ref

    class Mark:
        """A marker in the script's namespace (the module `__main__`). Once Python has destroyed it, the names
        that the script defined there are gone."""

    class End:
        """Its destructor ends the process by calling `leave`, if the script's module and the script's names
        are gone by then. Otherwise Python ends as usual."""

        def __init__(self, main: Any, mark: Mark) -> None:
            self.main, self.mark = ref(main), ref(mark)

        def __del__(self) -> None:
            # If they still exist, Python destroys them later. The names outlive their module if, for
            # instance, a signal's handler is a function of the script.
            if self.main() is not None or self.mark() is not None:
                return
            try:
                for stream in (sys.stdout, sys.stderr):
                    if stream is not None and not stream.closed:
                        stream.flush()
            except Exception:  # Python flushes them, too: it reports the error and ends as usual
                return
            leave(0)

    return End, Mark


def _real_sitecustomize() -> bool:
    """Imports the module `sitecustomize` of the image, if there is one, in place of this module of the same
    name. Before that, undoes the settings that made Python import this module.

    Returns whether the image has such a module.
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
        sys.modules["sitecustomize"] = this  # the import that is in progress expects it
        return False
    return True


def _freeze(known: set[str]) -> None:
    """Prepares the process for forks: removes all modules from `sys.modules` except those named in `known`,
    which a script finds there in a usual start of Python, and makes garbage collections skip all existing
    objects.

    A garbage collection in a fork would otherwise write into the memory that the fork shares, and so copy it.
    """
    import gc

    for name in set(sys.modules) - known:
        del sys.modules[name]
    gc.freeze()


def _renew_main() -> None:
    """Replaces the module `__main__`, in which the script will run, by a new module object.

    Garbage collections in a fork skip the old object, like all objects that existed before the fork. If the
    script ran in the old module, the destructors of the script's objects would not be called at the script's
    end.
    """
    old = sys.modules["__main__"]
    new = sys.modules["__main__"] = type(sys)("__main__")
    new.__dict__.update(old.__dict__)
    if "__annotations__" in new.__dict__:
        new.__annotations__ = {}


def _worker(prctl: Any) -> Any:
    """Returns a function that waits for orders (messages of the guest, air's program in the box, that request
    a fork) and makes a fork for each. That function returns only in a fork whose job (the command to run) is
    this interpreter's script."""
    import _signal  # type: ignore[import-not-found]
    import _socket

    family, kind = _socket.AF_UNIX, _socket.SOCK_SEQPACKET
    room, flags = _socket.CMSG_SPACE(12), _socket.MSG_CMSG_CLOEXEC
    own = os.environ.pop("PYTHONPATH").partition(":")[2]  # the first entry is PATH
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
        """Runs in a new fork of this interpreter. Makes the fork a process of the user id `uid`, kills all
        other processes of that user, and waits on the socket `jobs` for a job (a command to run).

        Returns if the job is this interpreter's own script, which the interpreter then runs. For other jobs,
        and if the script's user has packages that need a newly started interpreter, the fork executes the
        command as a new program. If the socket is closed without a job, the fork exits. After the change of
        user, no other process of that user can trace (inspect or change) this fork, so none can disturb it
        meanwhile.
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
        # Python adds a folder of packages in the workspace to its path only at its start: then start anew.
        if job == b"script" and not (packages and os.access(packages, os.F_OK)):
            jobs.close()
            os.environ[name.decode()] = value.decode()
            prctl(
                PR_SET_DUMPABLE, 1, 0, 0, 0
            )  # otherwise this process's /proc entries would belong to root
            return
        for number in (_signal.SIGPIPE, _signal.SIGXFSZ):  # Python ignores both, programs must not
            _signal.signal(number, _signal.SIG_DFL)
        _execute(jobs, command)

    return work


def _become(uid: int, kill: int) -> None:
    """Makes this fork a process of the user id `uid`, without capabilities. Sends the signal `kill` to all
    other processes of that user."""
    os.setsid()
    score = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    os.write(score, b"1000")  # if memory runs out, the kernel kills this process before the guest
    os.close(score)
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    os.nice(NICER)
    try:  # noqa: SIM105 — contextlib would stay imported in the script
        os.kill(-1, kill)
    except ProcessLookupError:
        pass


def _own_packages() -> str:
    """Returns the path of the user's own site-packages folder, which lies in the box's workspace. Returns ""
    if Python would not import from it. If this folder exists, a script needs a new interpreter instead of a
    fork, because Python adds the folder to its path only at its start."""
    import site

    return str(site.USER_SITE) if site.ENABLE_USER_SITE and site.USER_SITE else ""


def _execute(jobs: Any, command: list[bytes]) -> None:
    """Replaces this process, a fork of the interpreter, by another program (as `os.execve` does). Never
    returns. If the program cannot be run, sends `FAILED` to the guest (air's program in the box) on the
    socket `jobs`, prints the reason on standard error, and exits with status 127 (no such file) or 126.
    `command` contains, in this order, the working directory, the number of arguments, the arguments (the
    first is the program), and the environment variables as `NAME=VALUE`."""
    cwd, count, *texts = command
    argv, env = texts[: int(count)], dict(text.split(b"=", 1) for text in texts[int(count) :])
    try:
        os.chdir(cwd)
        _run_from_path(os.execve, argv, env)
    except BaseException as error:  # any error: this fork must end here, and not serve as a zygote
        jobs.send(FAILED)
        text = getattr(error, "strerror", None) or str(error)
        os.write(
            2, f"air: cannot run {os.fsdecode(argv[0])!r}: {text}\n".encode("utf-8", "replace")
        )
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def _run_from_path(run: Any, argv: list[bytes], env: dict[bytes, bytes]) -> Any:
    """Finds the program `argv[0]` in the folders of PATH (unless it contains `/`), and calls the function
    `run` with the program's path, `argv` and `env`. Does the same as `run_from_path` in
    `air/sandbox/guest/spawn.py`, which cannot be imported here.

    `os.execvpe` is not used because it imports the module `warnings` in each fork.
    """
    if b"/" in argv[0]:
        return run(argv[0], argv, env)
    missing: OSError = FileNotFoundError(2, os.strerror(2))
    folders = env[b"PATH"] if b"PATH" in env else os.fsencode(os.defpath)
    for folder in folders.split(b":"):
        path = (folder or b".") + b"/" + argv[0]
        try:
            if os.access(path, os.F_OK):
                return run(path, argv, env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            missing = error
    raise missing


if __name__ == "sitecustomize":
    main()
