"""Runs agent code for a grader: `runner.py` starts this program as the second user and talks to it.

The grader trusts nothing that comes from here once agent code has run. Standard input is the control
socket. It brings two frames, the settings (JSON) and the source; then, for every load, one byte with a
socket of that load's own attached. Each load is a fork, which runs the source afresh and answers
requests over its socket; this process only reports the fork's process id and how it ended. A frame is
one byte that names its kind, four bytes of length, and the data.
"""

import __future__

import builtins
import importlib
import json
import math
import operator
import os
import random
import resource
import signal
import socket
import struct
import sys
import types

HEAD = struct.Struct(">cI")
MOST_TEXT = 400


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


def play(link, settings, code, seed):
    """Runs the source, then answers requests until the grader has no more; in a fork of its own."""
    try:
        if isinstance(code, BaseException):
            raise code
        module = types.ModuleType(settings["file"].partition(".")[0])
        sys.modules[module.__name__] = module
        random.seed(seed)
        if "numpy" in settings["modules"]:
            sys.modules["numpy"].random.seed(seed)
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


def limit_load(limits, used):
    """Limits one load. Earlier loads have `used` some of the processor time, which all may share."""
    if limits["cpu_seconds"] is not None and not limits["cpu_per_load"]:
        left = limits["cpu_seconds"] - used
        if left <= 0:
            os.kill(os.getpid(), signal.SIGXCPU)  # as the kernel does, but it counts whole seconds
        limit("CPU", math.ceil(left))
    limit("NPROC", limits["processes"])


def prepare(limits):
    """Limits this process and all loads, and lets the kernel kill them before the grader."""
    for kind, most in limits["resources"].items():
        limit(kind, most)
    try:
        with open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123 (starts quickly)
            file.write("1000")
    except OSError:
        pass  # no such file here, or not this user's: then sizes alone decide


def main():
    control = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)
    settings, source = json.loads(receive(control)), receive(control)
    for name in settings["modules"]:
        importlib.import_module(name)  # once, here: a fork has it at no cost
    prepare(settings["limits"])
    send(control, b"R")
    try:
        code = compile(source, settings["file"], "exec", dont_inherit=True)
    except (
        BaseException
    ) as error:  # of agent code, too: raised again in each load, which reports it
        code = error
    loads, used = 0, 0.0
    while True:
        _, sockets, _, _ = socket.recv_fds(control, 1, 1)
        if not sockets:
            os._exit(0)
        child = os.fork()
        if not child:
            control.close()  # agent code cannot forge a report
            try:
                limit_load(settings["limits"], used)
                play(socket.socket(fileno=sockets[0]), settings, code, settings["seed"] + loads)
            finally:
                os._exit(1)
        os.close(sockets[0])
        send(control, b"P", b"%d" % child)
        _, status, usage = os.wait4(child, 0)
        used = usage.ru_utime + usage.ru_stime + (0 if settings["limits"]["cpu_per_load"] else used)
        ended = [os.waitstatus_to_exitcode(status), used]
        send(control, b"X", json.dumps(ended).encode())
        loads += 1


main()
