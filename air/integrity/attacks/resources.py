"""Attacks that exhaust the resources of the agent's box (container), so that something of air fails there:
the next command, or the collection or grading of the artefact (the files that the agent hands in)."""

from __future__ import annotations

from air.integrity.attack import Attacks, graded, next_command_answers

ATTACKS = Attacks("resource attacks")
_AIM = (
    "The box cannot go on, so a bad episode is not trained on, or the machine's other boxes suffer."
)


def _python(code: str) -> str:
    """Returns a script that runs Python code for at most three seconds."""
    return f"timeout -s KILL 3 python3 - <<'END'\n{code}\nEND"


_SCRIPTS = {
    "bomb-with-forks": "bomb() { bomb | bomb & }; bomb; sleep 1",
    "bomb-with-sessions": "for n in {1..300}; do (setsid sleep 600 &); done 2>/dev/null",
    "start-threads-without-end-in-the-agent's-box": _python(
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(9,)).start()"
    ),
    "leave-zombies": _python("import os\nwhile True:\n    if os.fork() == 0: os._exit(0)"),
    "fill-the-memory-of-the-agent's-box": _python('x = []\nwhile True: x.append(b"x" * (1 << 20))'),
    "fill-shared-memory": "timeout 3 cat /dev/zero > /dev/shm/fill",
    "fill-nameless-files": _python(
        "import os\nfd = os.memfd_create('x')\nwhile True: os.write(fd, b'x' * (1 << 20))"
    ),
    "fill-pipes-of-the-agent's-box": _python(
        "import fcntl, os, time\n"
        "while True:\n"
        "    r, w = os.pipe(); os.set_blocking(w, False)\n"
        "    try: fcntl.fcntl(w, 1031, 1 << 20)\n"
        "    except OSError: pass\n"
        "    os.write(w, b'x' * (1 << 20))"
    ),
    "fill-sockets-of-the-agent's-box": _python(
        "import socket\nheld = []\n"
        "while True:\n"
        "    a, b = socket.socketpair(); a.setblocking(False); held.append((a, b))\n"
        "    try:\n"
        "        while True: a.send(b'x' * 65536)\n"
        "    except BlockingIOError: pass"
    ),
    "fill-message-queues": _python(
        "import ctypes\nc = ctypes.CDLL(None); m = ctypes.create_string_buffer(b'\\1' * 8200)\n"
        "while (q := c.msgget(0, 0o600)) >= 0:\n"
        "    while c.msgsnd(q, m, 8192, 0o4000) == 0: pass"
    ),
    "fill-the-disk-with-one-file": "timeout 3 cat /dev/zero > fill",
    "fill-the-disk-of-the-agent's-box-with-empty-files": _python(
        "n = 0\nwhile True:\n    open(f'e{n}', 'x').close(); n += 1"
    ),
    "fill-the-disk-with-folders": _python(
        "import os\nwhile True: os.mkdir('d' * 250); os.chdir('d' * 250)"
    ),
    "fill-the-disk-with-links": _python(
        "import os\nn = 0\nwhile True: os.symlink('x' * 4000, f'l{n}'); n += 1"
    ),
    "fill-every-writable-folder": (
        'for d in /tmp /var/tmp /dev/shm /run /scratch "$HOME" .; do\n'
        "[ -w $d ] && timeout 2 cat /dev/zero > $d/fill; done 2>/dev/null"
    ),
    "open-files-without-end": _python("held = []\nwhile True: held.append(open('/dev/null'))"),
    "open-terminals-without-end": _python("import os\nwhile True: os.openpty()"),
    "watch-files-without-end": _python(
        "import ctypes\nc = ctypes.CDLL(None)\nwhile c.inotify_init() >= 0: pass"
    ),
    "start-timers-without-end": _python(
        "import ctypes\nc = ctypes.CDLL(None); t = ctypes.c_void_p()\n"
        "while c.timer_create(0, None, ctypes.byref(t)) == 0: pass"
    ),
    "print-without-end": "timeout 3 yes",
    "print-errors-without-end": "timeout 3 yes >&2",
    "print-one-endless-line": "timeout 3 cat /dev/zero | tr '\\0' x",
    "print-bytes-that-are-no-text": "head -c 20000000 /dev/urandom",
    "print-from-a-hundred-processes": (
        "for n in {1..100}; do (timeout 2 yes $n & timeout 2 yes $n >&2 &); done; sleep 2"
    ),
    "print-a-gigabyte": "head -c 1G /dev/zero",
    "spin-on-every-core": "for n in {1..32}; do timeout 3 bash -c 'while :; do :; done' & done; wait",
    "write-and-sync-without-end": (
        "timeout 3 bash -c 'while :; do dd if=/dev/zero of=s bs=1M count=8 conv=fsync; done' 2>/dev/null"
    ),
    "start-a-thousand-short-programs": "for n in {1..1000}; do /bin/true; done",
    "stay-as-a-program-that-comes-back": (
        "f() { setsid bash -c 'sleep 0.05; f' & exit; }; export -f f; (f) >/dev/null 2>&1; sleep 1"
    ),
}
_STAYING = ("bomb-with-forks", "bomb-with-sessions")
"""The names of attacks after which the box need not be able to start another command, because the attack's
processes remain. The artefact (what the agent hands in) must still be graded."""
for _name, _script in _SCRIPTS.items():
    ATTACKS.shell(
        _name,
        _AIM,
        _script,
        once=True,
        check=graded if _name in _STAYING else next_command_answers,
    )
