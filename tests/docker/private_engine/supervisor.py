"""Process 1 of a private engine's namespaces; started by `tests/docker/private_engine/engine.py`.

    unshare --mount --pid --fork … supervisor.py FOLDER MEGABYTES

It takes one JSON array a line on standard input, `[verb, *arguments]`, and answers each with one
line, `done`. When its input ends, whatever the reason, it kills and removes everything: processes,
mounts, cgroups, FOLDER. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CGROUPS = Path("/sys/fs/cgroup")


def until(holds: Callable[[], Any], what: str, *, seconds: float = 120.0) -> None:
    """Waits for a condition; AssertionError with `what` when it does not come within `seconds`."""
    give_up = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < give_up, f"{seconds:.0f} s passed without: {what}"
        time.sleep(0.02)


def cgroups(name: str) -> list[Path]:
    """The cgroups of the engine's boxes in all hierarchies, the deepest first."""
    tops = [*CGROUPS.glob(name), *CGROUPS.glob(f"*/{name}")]
    found = [Path(at) for top in tops for at, _, _ in os.walk(top)]
    return sorted(found, key=lambda path: -len(path.parts))


class Supervisor:
    """What starts, ends and removes one engine."""

    def __init__(self, folder: Path, megabytes: int) -> None:
        self.folder, self.megabytes = folder, megabytes
        self.pids: dict[str, int] = {}
        self.log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def prepare(self) -> None:
        """Makes the mounts and the two configurations."""
        (self.folder / "data").mkdir()
        options = {"/run": "mode=755", f"{self.folder}/data": f"size={self.megabytes}m"}
        for target, option in options.items():
            subprocess.run(["mount", "-t", "tmpfs", "-o", option, "tmpfs", target], check=True)
        (self.folder / "daemon.json").write_text("{}")  # instead of the machine's
        (self.folder / "containerd.toml").write_text(
            f'version = 2\nroot = "{self.folder}/data/containerd"\nstate = "/run/containerd"\n'
            'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
            f'[grpc]\naddress = "{self.folder}/containerd.sock"\n'
        )

    def serve(self) -> None:
        """Answers until the input ends."""
        signal.signal(signal.SIGCHLD, lambda *_: self._reap())
        for line in sys.stdin:
            verb, *arguments = json.loads(line)
            {"start": self.start, "end": self.end, "send": self.send}[verb](*arguments)
            print("done", flush=True)

    def start(self) -> None:
        """Starts containerd, and dockerd above it."""
        at = self.folder
        self._spawn("containerd", "--config", f"{at}/containerd.toml")
        until((at / "containerd.sock").exists, "containerd's socket")
        self._spawn(
            *("dockerd", "--host", f"unix://{at}/docker.sock", "--pidfile", f"{at}/docker.pid"),
            *("--config-file", f"{at}/daemon.json", "--data-root", f"{at}/data/docker"),
            *("--exec-root", f"{at}/run", "--containerd", f"{at}/containerd.sock"),
            *("--bridge=none", "--iptables=false", "--ip6tables=false"),
            *(f"--cgroup-parent=/{at.name}", "--exec-opt", "native.cgroupdriver=cgroupfs"),
        )

    def end(self, number: int) -> None:
        """Ends dockerd, then containerd, with a signal; returns when both are gone."""
        for name in ("dockerd", "containerd"):
            if name in self.pids:
                os.kill(self.pids[name], number)
                until(lambda name=name: name not in self.pids, f"the end of {name}")
        for name in ("containerd.sock", "docker.sock", "docker.pid"):
            (self.folder / name).unlink(missing_ok=True)

    def send(self, number: int) -> None:
        """Sends dockerd a signal."""
        os.kill(self.pids["dockerd"], number)

    def remove(self) -> None:
        """Kills everything and takes it away."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)
        for group in cgroups(self.folder.name):
            until(lambda group=group: _removed(group), f"the end of {group}")
        for row in reversed(Path("/proc/self/mounts").read_text().splitlines()):
            if row.split()[1].startswith(f"{self.folder}/"):
                subprocess.run(["umount", "--lazy", row.split()[1]], check=True)
        shutil.rmtree(self.folder)

    def _spawn(self, *argv: str) -> None:
        files = [(os.POSIX_SPAWN_DUP2, self.log, 1), (os.POSIX_SPAWN_DUP2, self.log, 2)]
        self.pids[argv[0]] = os.posix_spawnp(argv[0], argv, os.environ, file_actions=files)

    def _reap(self) -> None:
        """Collects dead children, adopted ones too."""
        with contextlib.suppress(ChildProcessError):
            while pid := os.waitpid(-1, os.WNOHANG)[0]:
                self.pids = {name: other for name, other in self.pids.items() if other != pid}


def _removed(group: Path) -> bool:
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:  # its last process is still ending
        return False
    return True


def main() -> None:
    """Supervises until standard input ends."""
    supervisor = Supervisor(Path(sys.argv[1]), int(sys.argv[2]))
    try:
        supervisor.prepare()
        supervisor.serve()
    finally:
        supervisor.remove()


if __name__ == "__main__":
    main()
