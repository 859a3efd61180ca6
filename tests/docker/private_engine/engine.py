"""A Docker engine of the tests' own, to be restarted, killed, suspended and filled up.

`dockerd` and its containerd, from this machine's binaries, run in mount, process and network
namespaces of their own, below a supervisor (`supervisor.py`) that is process 1 there: with it
everything ends, whatever happens to the tests. They share nothing with the machine's engine but its
kernel: socket, pid file, data root (a tmpfs of bounded size), `/run` and cgroups are their own. There
is no bridge, for which a dockerd deletes `docker0` where it finds one: never on the machine's network.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import requests
from docker.errors import DockerException

from tests.docker.private_engine import supervisor
from tests.docker.private_engine.supervisor import until

DATA_MB = 1024
_NAMESPACES = ("--mount", "--pid", "--net", "--fork", "--kill-child=KILL", "--mount-proc")


def problem() -> str:
    """Why no engine of our own can be started here, as half a line; empty where one can."""
    if os.geteuid() != 0:
        return "a private engine needs root"
    missing = [p for p in ("dockerd", "containerd", "unshare") if shutil.which(p) is None]
    return f"a private engine needs {missing[0]}" if missing else ""


class Engine:
    """One private engine. `start` after `stop` or `kill` finds the data of before."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.host = f"unix://{folder}/docker.sock"
        """What `DOCKER_HOST` must be."""
        program = [sys.executable, supervisor.__file__, str(folder), str(DATA_MB)]
        self._supervisor = subprocess.Popen(
            ["unshare", *_NAMESPACES, *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.data = Path(f"/proc/{self._supervisor.pid}/root{folder}/data")
        """The data root, as this side sees it."""

    def start(self) -> None:
        """Starts it and returns when it answers."""
        self._tell("start")
        until(self.answers, f"an engine that answers; see {self.folder}/log")

    def stop(self) -> None:
        """Ends it as an administrator would; returns when it is gone."""
        self._tell("end", signal.SIGTERM)

    def kill(self) -> None:
        """Kills it and its containerd, and nothing that runs in its boxes."""
        self._tell("end", signal.SIGKILL)

    def suspend(self) -> None:
        """Stops it in the middle of whatever it does, until `resume`."""
        self._tell("send", signal.SIGSTOP)

    def resume(self) -> None:
        """Lets it go on."""
        self._tell("send", signal.SIGCONT)

    def load(self, image: str) -> None:
        """Copies an image from the machine's engine."""
        with contextlib.closing(docker.from_env()) as theirs, self._client() as ours:
            ours.load_image(theirs.images.get(image).save(named=True))

    def answers(self) -> bool:
        """Whether it is there."""
        try:
            with socket.socket(socket.AF_UNIX) as knock:  # the SDK leaks its own where that fails
                knock.connect(self.host.removeprefix("unix://"))
            with self._client() as client:
                return bool(client.ping())
        except (DockerException, requests.RequestException, OSError):
            return False

    def containers(self) -> list[dict[str, Any]]:
        """Its summaries of all containers, in whatever state; one without a name is gone, though an
        engine that was killed meanwhile lists it as dead, and knows it no more when asked."""
        with self._client() as client:
            return [found for found in client.containers(all=True) if found["Names"]]

    def volumes(self) -> list[str]:
        """The names of all its volumes."""
        with self._client() as client:
            return [volume["Name"] for volume in client.volumes()["Volumes"] or []]

    def processes(self) -> set[int]:
        """Everything that runs in its boxes, by pid; found without asking it."""
        pids: set[int] = set()
        for group in supervisor.cgroups(self.folder.name):
            with contextlib.suppress(OSError):  # it went away meanwhile
                pids |= {int(pid) for pid in (group / "cgroup.procs").read_text().split()}
        return pids

    def log(self) -> str:
        """What it printed."""
        return (self.folder / "log").read_text(errors="replace")

    def programs(self) -> set[int]:
        """`processes` without the engine's own stubs: an engine that is killed between the creation
        of a process and its start forgets it, and its `runc init` waits for ever, doing nothing."""
        return {pid for pid in self.processes() if not _command(pid).startswith("runc:[")}

    def clear(self) -> None:
        """Kills what still runs in its boxes."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: not self.processes(), "an end of all processes")

    def close(self) -> None:
        """Kills and removes everything of it; returns when that is done."""
        assert self._supervisor.stdin is not None
        assert self._supervisor.stdout is not None
        self._supervisor.stdin.close()
        self._supervisor.stdout.close()
        assert self._supervisor.wait(120) == 0
        assert not self.folder.exists()

    def _client(self) -> contextlib.closing[docker.APIClient]:
        return contextlib.closing(docker.APIClient(self.host, version="auto", timeout=60))

    def _tell(self, *words: object) -> None:
        assert self._supervisor.stdin is not None
        assert self._supervisor.stdout is not None
        self._supervisor.stdin.write(json.dumps(words) + "\n")
        self._supervisor.stdin.flush()
        assert self._supervisor.stdout.readline() == "done\n"


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


@contextlib.contextmanager
def private_engine() -> Iterator[Engine]:
    """A private engine that answers and has the base image."""
    engine = Engine(Path(tempfile.mkdtemp(prefix="air-engine-")))
    try:
        engine.start()
        engine.load("air-base")
        yield engine
    finally:
        engine.close()
