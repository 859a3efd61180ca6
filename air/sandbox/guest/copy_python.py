"""A program that copies the Python interpreter that runs it. The copy can run in containers of any image.

The program makes the copy in `new/` and renames it to `python/` in the folder `HOME`, so a folder `python/`
is always complete. If several such programs run at once, one of them makes the copy and the others wait.
Standard library only, Python >= 3.8, no import of `air`.
"""

# ruff: noqa: PTH103, PTH104, PTH112, PTH118, PTH119, PTH120, PTH123
from __future__ import annotations

import ctypes
import fcntl
import os
import re
import shutil
import subprocess
import sys

from air.sandbox.guest import frames

HOME = "/.air"
"""The folder that contains the copy of Python. Boxes see it at the same path, read-only."""
LOADER, LIBRARIES, BINARY = "python/loader", "python/libraries", "python/bin/python3"
"""Three paths relative to `HOME`: of the copy's dynamic loader, of the folder with its shared libraries, and
of its Python binary."""
USED = (
    "array,binascii,ctypes,errno,fcntl,json,mmap,resource,select,shutil,signal,socket,struct,"
    "termios,zlib"
)
"""The standard-library modules that the guest (air's program in every box) imports. The copy must contain
them and the shared libraries that they load."""
_LEFT_OUT = re.compile(
    r"tests?|idle_test|idlelib|ensurepip|tkinter|turtledemo|lib2to3|(site|dist)-packages|config-.*"
)
_LISTED = re.compile(r"^\s*(\S+) => (/\S+)", re.MULTILINE)


def keep(home: str) -> None:
    """Makes the copy of Python in the folder `home`, unless that folder already contains one."""
    with open(os.path.join(home, "lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.chmod(home, 0o755)  # noqa: PTH101  # whoever made the folder, only root changes it
        target, new = os.path.join(home, "python"), os.path.join(home, "new")
        if os.path.isdir(target):
            return
        shutil.rmtree(new, ignore_errors=True)
        folder = os.path.join(new, "python")
        copy(folder)
        check(new)
        _sync(folder)
        os.rename(folder, target)
        os.rmdir(new)  # noqa: PTH106
        _sync(home)


def copy(folder: str) -> None:
    """Copies the Python interpreter that runs this program, with its libraries and its dynamic loader, into
    `folder`."""
    for name in USED.split(","):
        __import__(name)
    files = (getattr(module, "__file__", None) or "" for module in list(sys.modules.values()))
    compiled = {file for file in files if file.endswith(".so")}

    def left_out(parent: str, names: list[str]) -> list[str]:
        paths = ((name, os.path.join(parent, name)) for name in names)
        return [name for name, path in paths if _is_left_out(name, path) and path not in compiled]

    library = os.path.dirname(os.__file__)
    inside = os.path.join(folder, getattr(sys, "platlibdir", "lib"), os.path.basename(library))
    shutil.copytree(library, inside, ignore=left_out, ignore_dangling_symlinks=True)
    binary, loader = os.path.realpath(sys.executable), _loader()
    needed: dict[str, str] = {}
    for file in (binary, *compiled):
        listing = subprocess.run([loader, "--list", file], stdout=subprocess.PIPE, check=False)
        needed.update(_LISTED.findall(listing.stdout.decode()))
    for name in ("bin", "libraries"):
        os.makedirs(os.path.join(folder, name))
    for name, path in needed.items():
        shutil.copy(path, os.path.join(folder, "libraries", os.path.basename(name)))
    shutil.copy(binary, os.path.join(folder, "bin", "python3"))
    shutil.copy(loader, os.path.join(folder, "loader"))


def check(home: str) -> None:
    """Runs the copy of Python in the folder `home`; raises RuntimeError if it does not work."""
    argv = [*command(home), "-I", "-S", "-c", f"import sys, {USED}; print(sys.prefix)"]
    result = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    lines = result.stdout.decode("utf-8", "replace").split("\n")
    if result.returncode or lines[0] != os.path.join(home, "python"):
        raise RuntimeError("the copy of Python does not run: " + " ".join(lines)[-300:])


def command(home: str = HOME) -> list[str]:
    """Returns the command line (program and arguments) that starts the copy of Python in the folder `home`.
    The command line needs no environment variables."""
    loader, libraries, binary = (os.path.join(home, part) for part in (LOADER, LIBRARIES, BINARY))
    return [loader, "--library-path", libraries, binary]


def _loader() -> str:
    """Returns the path of the dynamic loader (`ld.so`) that loaded the shared libraries of this process."""
    with open("/proc/self/maps") as table:
        paths = {line.split(None, 5)[5].strip() for line in table if "/" in line}
    loaders = [path for path in paths if re.match(r"ld[-.0-9].*\.so", os.path.basename(path))]
    if not loaders:
        raise RuntimeError("Python is not linked dynamically here, so there is no loader to copy")
    return loaders[0]


def _is_left_out(name: str, path: str) -> bool:
    if os.path.isdir(path):
        return _LEFT_OUT.fullmatch(name) is not None
    return name.endswith(".so")


def _sync(folder: str) -> None:
    """Writes to the disk all buffered changes of the file system that contains `folder`."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        ctypes.CDLL(None).syncfs(fd)
    finally:
        os.close(fd)


def main() -> None:
    """Copies the running Python into the folder `HOME`, sends the message `ready` to the host, and ends."""
    keep(HOME)
    frames.send({"op": "ready"})
