"""Programs that try to leave something in a box for the next one, by every means that their user has."""

from __future__ import annotations

LEFTOVERS = {
    "timers": """
import ctypes, signal
signal.setitimer(signal.ITIMER_REAL, 60, 60)
signal.setitimer(signal.ITIMER_VIRTUAL, 60)
libc, timer = ctypes.CDLL(None), ctypes.c_void_p()
libc.timer_create(0, None, ctypes.byref(timer))
libc.timerfd_settime(libc.timerfd_create(1, 0), 0, (ctypes.c_long * 4)(60, 0, 60, 0), None)
""",
    "jobs for later": """
os.system("echo touch /tmp/later | at now; echo '* * * * * true' | crontab -; batch < /dev/null")
""",
    "priorities and limits": """
import ctypes, resource
libc = ctypes.CDLL(None)
os.setpriority(os.PRIO_USER, 1000, 15)
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
libc.syscall(251, 3, 1000, 3 << 13)  # ioprio_set, for all processes of the user
libc.prctl(29, 10**9, 0, 0, 0)
libc.personality(0x0040000)
resource.setrlimit(resource.RLIMIT_NPROC, (9, 9))
open("/proc/self/coredump_filter", "w").write("0x7f")
""",
    "locks, leases and watches": """
import ctypes, fcntl
libc = ctypes.CDLL(None)
files = [open(path) for path in ("/etc/passwd", "/usr/bin/python3")]
for file in files:
    fcntl.flock(file, fcntl.LOCK_SH)
open("a", "w").close()
fcntl.fcntl(os.open("a", 0), fcntl.F_SETLEASE, fcntl.F_RDLCK)
watch = libc.inotify_init()
for path in (b"/usr", b"/workspace"):
    libc.inotify_add_watch(watch, path, 4095)
fcntl.fcntl(os.open("/workspace", 0), fcntl.F_NOTIFY, 0x80000000 | 4)
""",
    "keys": """
import ctypes
libc = ctypes.CDLL(None)
for ring in range(-1, -9, -1):
    assert libc.syscall(248, b"user", b"air", b"x", 1, ring) == -1  # add_key
    assert libc.syscall(250, 0, ring, 1) == -1  # keyctl
""",
    "named sockets": """
one = socket.socket(socket.AF_UNIX)
one.bind("\\0air")
one.listen()
two = socket.create_server(("127.0.0.1", 5000))
three = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
three.bind(("0.0.0.0", 5001))
""",
    "files that only sockets in flight hold": """
for _ in range(50):
    one, two = socket.socketpair()
    file = open("a", "wb")
    file.write(bytes(99))
    socket.send_fds(one, [b"x"], [two.fileno(), file.fileno()])
    socket.send_fds(two, [b"x"], [one.fileno()])
    os.unlink("a")
""",
    "rights of files": """
os.mkdir("a")
open("a/b", "w").close()
os.chmod("a/b", 0o6777)
os.chmod("a", 0o3777)
entries = ("02000000", "01000700ffffffff", "04000700ffffffff", "20000700ffffffff")
capabilities = "0000000200000020000000000000000000000000"
attributes = {
    "user.a": b"x",
    "trusted.a": b"x",
    "security.capability": bytes.fromhex(capabilities),
    "system.posix_acl_access": bytes.fromhex("".join(entries)),
}
for path in ("a/b", "/usr/bin/python3"):
    for name, value in attributes.items():
        try:
            os.setxattr(path, name, value)
        except OSError:
            pass
""",
    "mounts and namespaces": """
import ctypes
libc = ctypes.CDLL(None)
os.mkdir("a")
for flag in (0x10000000, 0x20000, 0x8000000, 0x40000000, 0x4000000):
    assert libc.unshare(flag)
assert libc.mount(b"tmpfs", b"/workspace/a", b"tmpfs", 0, None)
assert libc.mount(None, b"/", None, 1 << 20, None)
assert libc.mount(b"/workspace/a", b"/usr", None, 4096, None)
assert libc.sethostname(b"mine", 4)
assert libc.chroot(b"a")
""",
    "the kernel's settings": """
import glob
for folder in ("/proc/sys/**", "/sys/fs/**"):
    for path in glob.glob(folder, recursive=True):
        try:
            os.write(os.open(path, os.O_WRONLY), b"1")
        except OSError:
            pass
""",
    "files that programs read at their start": """
names = [".bashrc", ".bash_profile", ".profile", ".inputrc", ".pythonrc", ".pdbrc", ".npmrc", ".netrc"]
names += ["pyvenv.cfg", "python3._pth", "air_program.pyc", "sitecustomize.py", "usercustomize.py"]
packages = ".local/lib/python%d.%d/site-packages" % sys.version_info[:2]
for folder in ("__pycache__", ".config", ".cache", packages):
    os.makedirs(folder)
for name in [*names, "encodings.py", "/tmp/sitecustomize.py", f"{packages}/a.pth"]:
    open(name, "w").write("import os; print(1)")
try:
    open(os.__file__ + "c", "wb").close()
except OSError:
    pass
""",
    "other processes": """
import ctypes
libc, mine = ctypes.CDLL(None), os.getpid()
for pid in [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != mine]:
    fd = libc.syscall(434, pid, 0)  # pidfd_open
    for number in range(9 if fd >= 0 else 0):
        assert libc.syscall(438, fd, number, 0) == -1  # pidfd_getfd
    assert libc.syscall(424, fd, 9, None, 0) == -1  # pidfd_send_signal
    assert libc.syscall(310, pid, None, 0, None, 0, 0) <= 0  # process_vm_readv
    for name in ("mem", "clear_refs", "autogroup", "oom_score_adj", "comm", "uid_map", "sched"):
        try:
            os.write(os.open(f"/proc/{pid}/{name}", os.O_WRONLY), b"1")
        except OSError:
            continue
        raise AssertionError(name)
""",
}
"""A reset removes what each of them leaves, or there is nothing that stays."""

SEES = """
import ctypes, os, resource, signal
for folder in ("/workspace", "/tmp", "/dev/shm", "/mnt", "/dev/mqueue", "/proc/self/fd"):
    print(folder, sorted(os.listdir(folder)), oct(os.stat(folder).st_mode))
print([os.listxattr(folder) for folder in ("/workspace", "/tmp", "/dev/shm", "/mnt", "/dev", "/")])
print(len([name for name in os.listdir("/proc") if name.isdigit()]))
print([open("/proc/sysvipc/" + name).read() for name in ("msg", "sem", "shm")])
print(open("/proc/net/dev").read(), open("/proc/net/tcp").read(), open("/proc/net/udp").read())
print(len(open("/proc/net/unix").readlines()))
print(sorted(name for name in os.environ), os.getcwd(), os.getuid(), os.getgroups())
print(os.getpriority(0, 0), ctypes.CDLL(None).syscall(252, 1, 0))  # ioprio_get
print(os.sched_getaffinity(0), os.sched_getscheduler(0))
print([resource.getrlimit(each) for each in range(16)])
print([signal.getitimer(each) for each in range(3)], signal.pthread_sigmask(0, []), signal.sigpending())
# Memory that two forks of one process could both write.
spans = [line.split(maxsplit=5) for line in open("/proc/self/maps")]
print([span[5:] for span in spans if "w" in span[1] and "s" in span[1]])
print(open("/proc/self/mountinfo").read(), os.uname().nodename)
print([open("/proc/self/" + name).read() for name in ("coredump_filter", "personality")])
"""
"""What a program sees of its box that should be the same in each new one."""
