"""Launches a process box (a box without a container) in Linux namespaces of its own. The process that opens
the box starts this program.

The first frame (message) on standard input is the launcher's configuration. The launcher forks. The child
process builds a root file system in new namespaces, gives up the privileges that it no longer needs, and
becomes the guest, air's program in the box, as process 1 of the box. The parent process stays outside of the
namespaces, and removes the box's folder after the child has ended. If one of the two processes dies, so does
the other. The box's user namespace never maps a user to the host's root. If the launcher runs as root, it
does the setup before it creates this namespace; otherwise it does the setup in a second, outer user
namespace. Standard library only, Python >= 3.8, no import of `air`.
"""

# ruff: noqa: PTH102, PTH103, PTH106, PTH108, PTH110, PTH112, PTH113, PTH120, PTH123, PTH211, SIM105
# pathlib is not worth its import at every start of a box.
from __future__ import annotations

import ctypes
import os
import signal
import sys

from air.sandbox.guest import frames, users
from air.sandbox.guest import main as guest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

NEW_MOUNTS, NEW_HOST_NAME, NEW_IPC = 0x0002_0000, 0x0400_0000, 0x0800_0000
NEW_USERS, NEW_PROCESSES, NEW_NETWORK = 0x1000_0000, 0x2000_0000, 0x4000_0000
RDONLY, NOSUID, NODEV, NOEXEC, REMOUNT = 1, 2, 4, 8, 32
BIND, RECURSIVE, PRIVATE, DETACH = 4096, 16384, 1 << 18, 2
OPTIONS = {"nosuid": 2, "nodev": 4, "noexec": 8, "noatime": 1024, "nodiratime": 2048}
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
SIOCSIFFLAGS, UP_AND_RUNNING = 0x8914, 0x41
SECOND_UID = 65533
WORKSPACE_FD = 9
"""The number of a file descriptor of the launcher's parent process (the process outside of the namespaces).
This descriptor keeps the box's workspace open, so that the host can reach the files of the workspace through
it (`/proc/<pid>/fd/…`)."""
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
PROC_CLOSED = ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi")
OLD = "/.old"
_LIBC = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Launches a process box, and runs the guest (air's program) in it. The first frame on standard input is
    the box's description, which `air.sandbox.process.namespaces.layout` makes. If the description names a
    trial command, runs this command instead of the guest."""
    config = frames.receive(guest.PATIENCE)
    try:
        _enter(config)
    except OSError as error:
        what = f"{error.filename}: " if error.filename else ""
        os.write(2, f"{what}{error.strerror}\n".encode("utf-8", "replace"))
        os._exit(1)
    if config["trial"]:
        os.execvp(config["trial"][0], config["trial"])
    guest.main()


def _enter(config: dict[str, Any]) -> None:
    os.umask(0o022)
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if not config["host_ids"]:
        uid, gid = os.geteuid(), os.getegid()
        _unshare(NEW_USERS, "a user namespace")
        _put("/proc/self/setgroups", "deny")
        _put("/proc/self/uid_map", f"0 {uid} 1")
        _put("/proc/self/gid_map", f"0 {gid} 1")
    _unshare(NEW_PROCESSES | NEW_IPC | NEW_HOST_NAME | NEW_NETWORK, "namespaces")
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if child:
        os.close(ready[1])
        os.close(go[0])
        _run_parent(child, ready[0], go[1], config)
    os.close(ready[0])
    os.close(go[1])
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    sysctls = _build(config)
    _unshare(NEW_USERS, "a user namespace")
    os.write(ready[1], b"1")
    if not os.read(go[0], 1):
        os._exit(1)  # the launcher has printed the reason
    os.close(ready[1])
    os.close(go[0])
    _drop_privileges(config, sysctls)


def _run_parent(child: int, ready: int, go: int, config: dict[str, Any]) -> NoReturn:
    """Runs the launcher's parent process until the box has ended, and exits. The parent process maps the
    box's user ids, waits for the end of the process `child`, which becomes the guest (air's program in the
    box), and removes the box's folder.

    `ready` and `go` are file descriptors of pipes: `child` reports through `ready` that the user ids can be
    mapped, and continues when it reads a byte from `go`. `config` is the launcher's configuration.
    """
    # If another process inherited the standard input, the guest would not see the end of the host's process.
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGKILL))
    if config["group"]:
        _bound_memory(child, config["group"])  # slow; the child prepares the box meanwhile
    if os.read(ready, 1):
        base = config["host_ids"]
        ids = f"0 {base} 65536" if base else f"{users.INSIDE_UID} 0 1"
        _put(f"/proc/{child}/uid_map", ids)
        _put(f"/proc/{child}/gid_map", ids)
        folder = os.open(f"/proc/{child}/root{config['workspace']}", os.O_RDONLY | os.O_DIRECTORY)
        os.dup2(folder, WORKSPACE_FD)
        os.write(go, b"1")
    os.close(go)
    # If the host's process dies, the guest's input closes, and SIGTERM makes this process kill the guest. If
    # the guest has already ended, a late SIGTERM must be ignored: otherwise the handler would fail and the
    # folder would remain.
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    status = os.waitpid(child, 0)[1]
    if config["group"]:
        _remove_group(config["group"]["folder"])
    try:
        os.rmdir(config["folder"])
    except OSError:
        pass  # the host, or the next cleanup, removes the folder
    os._exit(1 if status else 0)


def _remove_group(folder: str) -> None:
    """Removes the control group `folder` of an ended box. Retries, because the kernel may need a moment after
    the last process has ended."""
    import time

    for _ in range(100):
        try:
            return os.rmdir(folder)
        except OSError:
            time.sleep(0.01)


def _bound_memory(child: int, group: dict[str, Any]) -> None:
    """Creates a control group (cgroup) with a memory limit, and moves the process `child` there. The limit
    also holds for the child's descendants.

    `group` describes the control group as a dict: `folder` is its path; `files` are pairs (name of a file in
    this folder, text to write there).
    """
    os.mkdir(group["folder"])
    for number, (name, text) in enumerate(group["files"]):
        file = f"{group['folder']}/{name}"
        if number == 0 or os.path.exists(file):
            _put(file, text)
    _put(f"{group['folder']}/cgroup.procs", str(child))


# The root


def _build(config: dict[str, Any]) -> int:
    """Builds the box's root file system and unmounts the host's. `config` is the description of the box that
    the launcher got. Returns a file descriptor of the box's `/proc/sys`, through which `_drop_privileges`
    later forbids new user namespaces."""
    _unshare(NEW_MOUNTS, "a mount namespace")
    _mount("none", "/", flags=RECURSIVE | PRIVATE)
    _mount("tmpfs", config["folder"], "tmpfs", NOSUID | NODEV, "size=1m,mode=755")
    os.mkdir(config["folder"] + OLD)
    if _LIBC.pivot_root(config["folder"].encode(), (config["folder"] + OLD).encode()):
        raise _error("pivot_root")
    os.chdir("/")
    for name, target in config["links"]:
        os.symlink(target, name)
    os.mkdir("/dev")
    _mount("tmpfs", "/dev", "tmpfs", NOSUID | NODEV | NOEXEC, "size=64k,mode=755")
    for folder, options in config["writable"]:
        os.makedirs(folder, exist_ok=True)
        _mount("tmpfs", folder, "tmpfs", NOSUID | NODEV, options)
    for source, where in config["shown"]:
        _show(source, where)
    for folder in config["hidden"]:
        _mount("tmpfs", folder, "tmpfs", NOSUID | NODEV | NOEXEC, "size=4k,mode=755")
    devices = [f"/dev/{name}" for name in DEVICES] + config["devices"]
    for device in devices:
        _show(device, device)
    _lay_dev()
    sysctls = _lay_proc(config)
    os.mkdir("/sys")
    _mount("sysfs", "/sys", "sysfs", RDONLY | NOSUID | NODEV | NOEXEC)
    if _LIBC.umount2(OLD.encode(), DETACH):
        raise _error("leaving the host's root")
    os.rmdir(OLD)
    _lay_names(config["workspace"])
    open_ones = {"/proc", "/dev/pts", *devices, *(folder for folder, _ in config["writable"])}
    _close_to_writing(open_ones)
    _raise_loopback()
    if _LIBC.sethostname(b"box", 3):
        raise _error("the host name")
    return sysctls


def _show(source: str, where: str) -> None:
    """Mounts the host's file or folder with the absolute path `source` in the box at the path `where`, so
    that commands can see it."""
    if os.path.isdir(OLD + source):
        os.makedirs(where, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(where), exist_ok=True)
        os.close(os.open(where, os.O_CREAT | os.O_WRONLY, 0o644))
    _mount(OLD + source, where, flags=BIND | RECURSIVE)


def _lay_dev() -> None:
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink(f"/proc/self/fd{target}", f"/dev/{name}")
    os.mkdir("/dev/pts")
    options = "newinstance,ptmxmode=0666,mode=620"
    _mount("devpts", "/dev/pts", "devpts", NOSUID | NOEXEC, options)
    os.symlink("pts/ptmx", "/dev/ptmx")


def _lay_proc(config: dict[str, Any]) -> int:
    os.mkdir("/proc")
    _mount("proc", "/proc", "proc", NOSUID | NODEV | NOEXEC)
    sysctls = os.open("/proc/sys", os.O_PATH | os.O_DIRECTORY)
    pages = config["shm_bytes"] // os.sysconf("SC_PAGE_SIZE")
    for name, value in (("shmall", str(pages)), *config["ipc"]):
        try:
            _put(f"/proc/sys/kernel/{name}", value)
        except PermissionError:
            if config["host_ids"]:
                raise
            # Before Linux 6.0, these settings belong to the host's root even in a new namespace.
    for name in PROC_CLOSED:
        if os.path.exists(f"/proc/{name}"):
            _mount(f"/proc/{name}", f"/proc/{name}", flags=BIND)
    return sysctls


def _lay_names(home: str) -> None:
    """Replaces the host's /etc/passwd and /etc/group in the box by files that list only the box's own users,
    by mounting these files there. `home` is the home folder of the user of commands."""
    accounts = (("root", 0, "/"), ("agent", users.INSIDE_UID, home), ("second", SECOND_UID, "/"))
    for file, line in (("passwd", "{0}:x:{1}:{1}::{2}:/bin/bash\n"), ("group", "{0}:x:{1}:\n")):
        if os.path.isfile(f"/etc/{file}"):
            with open(f"/{file}", "w") as names:
                names.writelines(line.format(*account) for account in accounts)
            _mount(f"/{file}", f"/etc/{file}", flags=BIND)
            os.unlink(f"/{file}")


def _close_to_writing(open_ones: set[str]) -> None:
    """Remounts every mount of the box read-only and without setuid, except the mounts whose path is in
    `open_ones`."""
    with open("/proc/self/mountinfo", "rb") as table:
        mounts = [line.split()[4:6] for line in table]
    for raw, options in mounts:
        path = raw.decode("unicode_escape").encode("latin-1")
        if os.fsdecode(path) in open_ones:
            continue
        flags = REMOUNT | BIND | RDONLY | NOSUID
        for option in options.decode().split(","):
            flags |= OPTIONS.get(option, 0)  # without root, a mount's flags must stay as they are
        try:
            _mount("none", os.fsdecode(path), flags=flags)
        except PermissionError as error:
            if error.errno != 13:  # EACCES: nobody in the box can reach this mount
                raise


def _raise_loopback() -> None:
    fd = _LIBC.socket(2, 2, 0)
    request = b"lo".ljust(16, b"\0") + UP_AND_RUNNING.to_bytes(2, sys.byteorder)
    if fd < 0 or _LIBC.ioctl(fd, SIOCSIFFLAGS, request.ljust(40, b"\0")):
        raise _error("the loopback interface")
    os.close(fd)


# Privileges


def _drop_privileges(config: dict[str, Any], sysctls: int) -> None:
    """Gives up this process's privileges for good. `config` is the description of the box. `sysctls` is a
    file descriptor of `/proc/sys`: the function forbids new user namespaces through it, and closes it.

    If the box has only one user, the process becomes this user, without capabilities. If the box has several
    users, the process becomes the box's root, and keeps only the capabilities that it needs to become the
    guest (air's program in the box), whose user is not that of its commands (`users.become_guest`).
    """
    fd = os.open("user/max_user_namespaces", os.O_WRONLY, dir_fd=sysctls)
    os.write(fd, b"0")  # the creator of a user namespace has every privilege inside it
    os.close(fd)
    os.close(sysctls)
    several = bool(config["host_ids"])
    capabilities = (users.KILL, users.SETGID, users.SETUID, users.SETPCAP) if several else ()
    users.limit_capabilities(capabilities)
    if several:
        os.setgroups([])
    uid = 0 if several else users.INSIDE_UID
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    users.keep_capabilities(capabilities)
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # again: the change of user has unset it
    if config["pids"]:
        import resource

        resource.setrlimit(resource.RLIMIT_NPROC, (config["pids"], config["pids"]))


# System calls


def _error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), what)


def _prctl(option: int, value: int) -> None:
    if _LIBC.prctl(option, value, 0, 0, 0):
        raise _error("prctl")


def _unshare(flags: int, what: str) -> None:
    if _LIBC.unshare(flags):
        raise _error(what)


def _mount(source: str, where: str, kind: str = "none", flags: int = 0, options: str = "") -> None:
    args = (os.fsencode(text) for text in (source, where, kind))
    if _LIBC.mount(*args, ctypes.c_ulong(flags), options.encode()):
        raise _error(f"mounting {where}")


def _put(file: str, text: str) -> None:
    fd = os.open(file, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    except OSError as error:
        raise OSError(error.errno, error.strerror, file) from None
    finally:
        os.close(fd)
