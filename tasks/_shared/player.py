"""Runs agent code for a grader: `runner.py` starts this program and talks to it.

Standard input is the control socket. It brings two frames, the settings (JSON) and the source; then, for
every load, one byte with a socket of that load's own attached, and a frame with the processor time that the
load may use. This process forks a guard for each load, and the guard forks the load, which becomes the
second user, reads its seed from its socket, runs the source afresh and answers requests. The guard reports
the load's process id and how the load ended, removes what the load left, and ends. So nothing that depends on
a load comes into this process, of which the next load is a copy. This process and the guard stay the
grader's user, so that agent code can neither trace, signal nor limit them, and never look at the source. A
frame is one byte that names its kind, four bytes of length, and the data.
"""

# ruff: noqa: PTH101, PTH102, PTH104, PTH106, PTH108, PTH109, PTH112, PTH114, PTH118, PTH120, PTH123, PTH208
# pathlib is not worth its import at every grade.
import __future__

import builtins
import ctypes
import importlib
import json
import operator
import os
import platform
import random
import resource
import signal
import socket
import struct
import sys
import time
import types

HEAD = struct.Struct(">cI")
MOST_TEXT = 400
CALLS = {
    "x86_64": {"arch": 0xC000003E, "prctl": 157, "clocks": (222, 228, 229, 230), "run": (59, 322),
               "counted": (22, 53, 99, 293)},
    "aarch64": {"arch": 0xC00000B7, "prctl": 167, "clocks": (107, 113, 114, 115), "run": (221, 281),
                "counted": (59, 179, 199)},
}  # fmt: skip
"""By machine: its number in a filter of system calls, and the numbers of prctl; of the calls that name a
clock; of execve and execveat; and of pipes, pairs of sockets and sysinfo. The kernel numbers pipes and
sockets one after another, so that a load could read how many another one has made."""
REFUSED = {
    "x86_64": (*range(29, 32), 41, *range(64, 72), 101, 132, 220, 235, *range(240, 246), *range(248, 251),
               261, 280, 310, 311, 319, *range(425, 428), 434, *range(444, 448)),
    "aarch64": (88, 117, *range(180, 199), 217, 218, 219, 270, 271, 279, *range(425, 428), 434,
                *range(444, 448)),
}  # fmt: skip
"""By machine: shared memory, semaphores and queues of System V, POSIX queues, keys of the kernel, memory
without a name, the memory of other processes, sockets, times of files, io_uring (which makes calls that
no filter sees), handles of processes, and Landlock (whose rules keep removed files for a moment). They
outlive a load, tell of another one, or evade its limits."""
PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, FILTER_MODE = 4, 22, 38, 2
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
"""System calls of Landlock, by which a process gives up access to files; the same on all machines."""
WRITE_FILE, READ_FILES, TRUNCATE = 1 << 1, 1 << 0 | 1 << 2 | 1 << 3, 1 << 14
CLOSED = {"proc", "sys", "dev", "tmp", "workspace"}
"""Folders that tell of other processes, or in which reading a file changes its times."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
CONSTANTS = (
    "/proc/cpuinfo",
    *("/sys/devices/system/cpu/" + n for n in ("online", "possible", "present")),
)
"""What libraries read to count the processor's cores."""


class NotJson(Exception):
    """The function returned something that JSON cannot hold."""


def send(link, kind, data=b""):
    link.sendall(HEAD.pack(kind, len(data)) + data)


def receive(link):
    """The data of the next frame. Ends this process if the grader has closed the socket."""
    _, size = HEAD.unpack(read(link, HEAD.size))
    return read(link, size)


def read(link, count):
    data = bytearray()
    while len(data) < count:
        part = link.recv(min(count - len(data), 1 << 20))
        if not part:
            os._exit(0)
        data += part
    return bytes(data)


def calls(function):
    """The usual protocol: a request holds arguments as JSON, the answer what the function returns."""

    encoder = json.JSONEncoder(default=plain)

    def answer(request):
        value = function(*json.loads(request))
        try:
            return encoder.encode(value).encode()
        except (TypeError, ValueError, RecursionError):
            raise NotJson from None

    return answer


def plain(value):
    """Numbers and arrays of NumPy, and what else counts as an integer, as JSON has them."""
    return value.tolist() if hasattr(value, "tolist") else operator.index(value)


def play(link, settings, source):
    """Runs the source, then answers requests until the grader has no more; in a fork of its own."""
    try:
        seed = int(receive(link))
        code = compile(source, settings["file"], "exec", dont_inherit=True)
        module = types.ModuleType(settings["file"].partition(".")[0])
        sys.modules[module.__name__] = module
        random.seed(seed)
        if "numpy" in settings["modules"]:
            sys.modules["numpy"].random.seed(seed)
        sys.path[:0] = settings["imports"]
        exec(code, module.__dict__)
        answer = protocol(settings)(*(defined(module, name) for name in settings["functions"]))
        send(link, b"R")
        while True:
            send(link, b"A", answer(receive(link)))
    except NotJson:
        send(link, b"J")
    except BaseException as error:  # agent code raises what it likes, SystemExit included: reported
        send(link, b"E", json.dumps(report(error, settings["file"])).encode())


def defined(module, name):
    function = getattr(module, name, None)
    if not callable(function):
        raise TypeError(f"it defines no function {name}")
    return function


def protocol(settings):
    """The function that makes answers out of requests: a task's own, which came as source, or `calls`."""
    name, source = settings["protocol"]
    if not name:
        return calls
    space = {}
    flags = __future__.annotations.compiler_flag  # the types that it names are not here
    exec(compile(source, "protocol", "exec", flags), space)
    return space[name]


def report(error, file):
    """What happened: the nearest kind of error that Python knows, the line of the source, the text."""
    kind = next(k for k in type(error).__mro__ if getattr(builtins, k.__name__, None) is k)
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            line = trace.tb_lineno
        trace = trace.tb_next
    return {"kind": kind.__name__, "line": line, "text": " ".join(str(error).split())[:MOST_TEXT]}


def limit(kind, most):
    if most is not None:
        hard = most + 1 if kind == "CPU" else most  # first SIGXCPU, which says why; then SIGKILL
        resource.setrlimit(getattr(resource, "RLIMIT_" + kind), (most, hard))


def limit_load(limits):
    """Limits one load. The limits are the same for every load: they would tell what others have used."""
    for kind, most in limits["resources"].items():
        limit(kind, most)
    limit("NPROC", limits["processes"])


def become(user):
    """Changes to the second user, if there is one. The kernel then closes this process to its own user."""
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)


def refuse_calls(limits):
    """Refuses system calls that a load could use to outlive or evade its limits; no honest code needs them.

    Without prctl's PR_SET_DUMPABLE it cannot open itself to its user again, and so not change its place
    in the order in which the kernel kills for want of memory. A clock with a negative number is that of
    another process.
    """
    machine = platform.machine()
    if machine not in CALLS:
        raise RuntimeError(f"no system calls of {machine} are known")
    calls, refused = CALLS[machine], [*REFUSED[machine]]
    if limits["processes"] == 0:
        refused += [*calls["run"], *calls["counted"]]
    load, equal, above, give = 0x20, 0x15, 0x35, 0x06  # the instructions of the filter
    no, yes = (give, 0, 0, 0x50001), (give, 0, 0, 0x7FFF0000)
    rules = [
        (load, 0, 0, 4),
        (equal, 1, 0, calls["arch"]),
        no,
        (load, 0, 0, 0),
        (above, 0, 1, 1 << 30),
        no,
    ]
    for number in refused:
        rules += [(equal, 0, 1, number), no]
    for number in calls["clocks"]:
        rules += [(equal, 0, 4, number), (load, 0, 0, 16), (above, 0, 1, 1 << 31), no, yes]
    rules += [
        (equal, 0, 3, calls["prctl"]),
        (load, 0, 0, 16),
        (equal, 0, 1, PR_SET_DUMPABLE),
        no,
        yes,
    ]
    program = b"".join(struct.pack("=HBBI", *rule) for rule in rules)
    buffer = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("@HP", len(rules), ctypes.addressof(buffer))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_ulong]
    if prctl(PR_SET_SECCOMP, FILTER_MODE, head, 0, 0):
        raise OSError(ctypes.get_errno(), "the kernel takes no filter of system calls")


def close_files(settings, place):
    """Gives up access to files but those of the system and of this load, as far as the kernel has Landlock.

    /proc and /sys have counters of other processes and of the whole box. Writing is possible only in the
    load's own folder, and not even there if files have no size: they are numbered one after another.
    A rule keeps its folder for a moment after the load, in which the next one could count it. So with a
    second user, who cannot write there, the rule names the folder around that of the load.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "the kernel cannot take privileges away")
    version = libc.syscall(LANDLOCK_CREATE, None, 0, 1)
    if version < 1:
        return  # a kernel without it
    known = (1 << (13 if version == 1 else 14 if version == 2 else 15)) - 1
    handled = struct.pack("=Q", known)
    rules = libc.syscall(LANDLOCK_CREATE, handled, len(handled), 0)
    files = settings["limits"]["resources"]["FSIZE"] != 0
    reading = ["/" + name for name in os.listdir("/") if name not in CLOSED]
    reading += [*sys.path, sys.prefix, sys.base_prefix, *settings["imports"], *CONSTANTS]
    allowed = [(path, READ_FILES) for path in reading]
    allowed += [(path, READ_FILES | WRITE_FILE | TRUNCATE) for path in DEVICES]
    own = place if settings["user"] is None else os.path.dirname(place)
    for path, access in [*allowed, (own, known if files else READ_FILES)]:
        try:
            fd = os.open(path, os.O_PATH)
        except OSError:
            continue  # not every box has each, and nothing can be read through it
        if not os.path.isdir(path):
            access &= ~(1 << 3)  # listing: of folders only
        rule = struct.pack("=Qi", access & known, fd)
        if libc.syscall(LANDLOCK_ADD, rules, 1, rule, 0):
            raise OSError(ctypes.get_errno(), "the kernel takes no rule for " + path)
        os.close(fd)
    if libc.syscall(LANDLOCK_RESTRICT, rules, 0):
        raise OSError(ctypes.get_errno(), "the kernel takes no rules for files")
    os.close(rules)


def killed_first():
    """Lets the kernel kill this process before the grader, if memory runs out."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass  # no such file here, or not this user's: then sizes alone decide


def clear(place, settings):
    """Ends what a load left running and removes its files, as the second user; whether all are gone."""
    child = os.fork()
    if not child:
        try:
            become(settings["user"])
            if settings["alone"]:
                os.kill(-1, signal.SIGKILL)  # all of this user's but this process
        except ProcessLookupError:
            pass  # nothing is left
        try:
            remove_all(place)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    try:
        os.rmdir(place)
    except OSError:
        return False
    return True


def remove_all(place):
    """Empties a folder. Folders in it are moved up first: they may be too deep for a path or a recursion."""
    os.chdir(place)
    folders = ["."]
    while folders:
        folder = folders.pop()
        for name in os.listdir(folder):
            path = f"{folder}/{name}"
            if os.path.isdir(path) and not os.path.islink(path):
                os.chmod(path, 0o700)
                folders.append(os.urandom(8).hex())
                os.rename(path, folders[-1])
            else:
                os.unlink(path)
        if folder != ".":
            os.rmdir(folder)


def shut_in(settings, place):
    """Makes this process, a fork, one in which agent code may run."""
    os.chdir(place)
    os.environ["TMPDIR"] = place
    killed_first()
    become(settings["user"])
    close_files(settings, place)
    limit_load(settings["limits"])
    refuse_calls(settings["limits"])


def tried(settings):
    """Why a fork cannot be shut in on this machine; empty if it can. No agent code has run yet."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            shut_in(settings, os.getcwd())
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {error}".encode()[:MOST_TEXT])
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as said:
        text = said.read()
    os.waitpid(child, 0)
    return text


def guard(control, link, settings, source):
    """Forks the load, waits for its end, reports it and removes what it left; in a fork of its own."""
    place = os.path.join(os.getcwd(), "load")
    os.mkdir(place)
    os.chmod(place, 0o755 if settings["limits"]["resources"]["FSIZE"] == 0 else 0o777)
    child = os.fork()
    if not child:
        control.close()  # agent code cannot forge a report
        try:
            shut_in(settings, place)
            play(link, settings, source)
        finally:
            os._exit(1)
    link.close()
    send(control, b"P", b"%d" % child)
    status, usage = watch(child, json.loads(receive(control)))
    code, seconds = os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
    send(control, b"X", json.dumps([code, seconds, clear(place, settings)]).encode())


def watch(child, most):
    """Waits for the end of a load; ends it when it has used `most` seconds of processor time (None: never).

    A limit of the kernel could not do this: the load could read there what earlier ones have used.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    told = False
    while True:
        ended, status, usage = os.wait4(child, 0 if most is None else os.WNOHANG)
        if ended:
            return status, usage
        left = most - time.clock_gettime(
            ~child << 3 | 2
        )  # the clock of the processor time of `child`
        if left <= -1:
            os.kill(child, signal.SIGKILL)
        elif left <= 0 and not told:
            told = True
            os.kill(child, signal.SIGXCPU)
        signal.sigtimedwait({signal.SIGCHLD}, max(left, 0.05))


def main():
    control = socket.socket(fileno=os.dup(0))
    sys.path.remove("")  # the working folder
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)
    settings, source = json.loads(receive(control)), receive(control)
    for name in settings["modules"]:
        importlib.import_module(name)  # once, here: a fork has it at no cost
    send(control, b"R", tried(settings))
    while True:
        _, sockets, _, _ = socket.recv_fds(control, 1, 1)
        if not sockets:
            os._exit(0)
        child = os.fork()
        if not child:
            try:
                guard(control, socket.socket(fileno=sockets[0]), settings, source)
            except BaseException:  # the report is missing then, which the grader notices
                os._exit(1)
            os._exit(0)
        os.close(sockets[0])
        if os.waitpid(child, 0)[1]:
            os._exit(1)


main()
