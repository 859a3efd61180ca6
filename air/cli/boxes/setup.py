"""Implements the command `air setup`: makes Docker ready for boxes, the sandboxes for agents' commands. It
installs Docker (as root) and starts it if necessary, and builds the base image. It never reconfigures a
running Docker.

If there is no Docker and it cannot be installed, boxes are plain processes: the command prints in which ways
they are not isolated, and succeeds. With the environment variable `AIR_REQUIRE_DOCKER=1`, it fails instead,
with exit code 1. It also fails if `DOCKER_HOST` names a container engine that cannot be used.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from air import paths
from air.errors import AirError, BoxStartError, InfrastructureError, MissingError
from air.sandbox.contract.box import NOT_ISOLATED

HELP = "make Docker and the base image ready (once; harmless to repeat)"
EXAMPLES = ("air setup",)
_START_SECONDS = 60
_CAP_SYS_ADMIN = 1 << 21


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Does nothing, because `air setup` has no flags."""
    del parser


def run(args: argparse.Namespace) -> int:
    del args
    from air.sandbox.docker import air_images

    try:
        version = ensure_engine()
        air_images.ensure("base", say=_say)
    except (MissingError, InfrastructureError) as error:
        if os.environ.get("DOCKER_HOST"):
            raise
        if os.environ.get("AIR_REQUIRE_DOCKER") == "1":
            text = paths.runnable(f"air setup: AIR_REQUIRE_DOCKER=1, and {error}")
            print(text, file=sys.stderr)
            return 1
        print(paths.runnable(f"No Docker boxes: {error}. {NOT_ISOLATED}."), flush=True)
        return 0
    _say(f"Docker {version} and image air-base are ready.")
    return 0


def ensure_engine() -> str:
    """Installs and starts Docker if necessary; returns Docker's version.

    Raises MissingError if this process must not or cannot install Docker, and BoxStartError if Docker does
    not start.
    """
    try:
        return _version()
    except AirError as error:
        _refuse(error)
    from air.sandbox.docker import base_image

    if _dockerd() is None:
        if shutil.which("apt-get") is None:
            raise MissingError(
                "Docker is not installed, and this system has no apt-get",
                remedy="install Docker with your distribution's packages, then run `air setup` again",
            )
        _say("Installing Docker from the distribution's packages (docker.io).")
        base_image.apt_install("docker.io", "iptables")
    return _start()


def _refuse(error: AirError) -> None:
    """Called after a failed attempt to connect to Docker. Raises MissingError, with a remedy, if this process
    has no right to install or start Docker; otherwise returns.

    `error` is the error of that attempt. If `DOCKER_HOST` is set, raises `error` itself, because its message
    names the container engine that the user has chosen.
    """
    if os.environ.get("DOCKER_HOST"):
        raise error  # it names the engine that the user asked for
    if "permission denied" in str(error):
        raise MissingError(
            "this user may not use Docker",
            remedy="`sudo usermod -aG docker $USER`, then log in again",
        )
    if os.geteuid() != 0:
        remedy = "`sudo systemctl start docker`" if _dockerd() else "`sudo make quickstart` once"
        raise MissingError("no Docker engine runs and this user is not root", remedy=remedy)
    if not _privileged():
        raise MissingError(
            "no Docker engine runs, and this container may not run one",
            remedy="share the host's (-v /var/run/docker.sock:/var/run/docker.sock) or use "
            "--privileged",
        )


def _version() -> str:
    from air.sandbox.docker import engine

    with engine.translating("asking for its version"):
        return str(engine.client().version()["Version"])


def _dockerd() -> str | None:
    """Returns the path of `dockerd`, or None if it is not installed. Searches the PATH and two sbin folders,
    which `su` often leaves out of the PATH."""
    return shutil.which("dockerd", path=os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin")


def _privileged() -> bool:
    """Whether this process may mount file systems, which Docker needs."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    effective = next(line.split()[1] for line in lines if line.startswith("CapEff"))
    return bool(int(effective, 16) & _CAP_SYS_ADMIN)


def _start() -> str:
    """Starts Docker through systemd, or directly if there is no systemd; returns Docker's version. Raises
    BoxStartError if Docker does not answer."""
    if version := _await_engine(2):  # the package may have started it
        return version
    _say("Starting Docker.")
    if Path("/run/systemd/system").is_dir():
        from air.sandbox.docker import base_image

        base_image.run(["systemctl", "start", "docker"], "systemctl start docker")
        if version := _await_engine(_START_SECONDS):
            return version
        raise BoxStartError("Docker was started but does not answer — see `journalctl -u docker`")
    return _start_directly(Path("/run"), Path("/var/log/dockerd.log"))


def _start_directly(run_folder: Path, log: Path) -> str:
    """Starts `dockerd` in a session of its own, so that it continues when this command ends. Returns Docker's
    version. `run_folder` is the folder of pid files, such as `/run`; `log` is the file for the output of
    `dockerd`. Raises BoxStartError if `dockerd` does not answer."""
    if clear_stale_pids(run_folder):
        if version := _await_engine(_START_SECONDS):
            return version
        raise BoxStartError("a dockerd runs but does not answer — restart it")
    with log.open("ab") as sink:
        offset = sink.tell()
        daemon = subprocess.Popen(
            [_dockerd() or "dockerd"],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )
    if version := _await_engine(_START_SECONDS, daemon):
        daemon.returncode = 0  # dockerd stays on purpose; prevents a warning about a live child
        return version
    status = daemon.poll()
    if status is None:
        daemon.kill()
        daemon.wait()
    text = log.read_bytes()[offset:].decode("utf-8", "replace")
    lines = [line for line in text.splitlines() if line.strip()]
    last = lines[-1].split("msg=")[-1][:300] if lines else "it printed nothing"
    state = "does not answer" if status is None else f"ended with status {status}"
    raise BoxStartError(f"Docker was started but {state}: {last} — see {log}")


def clear_stale_pids(run_folder: Path) -> bool:
    """Removes Docker's stale pid files from the folder `run_folder`, such as `/run`. Returns whether
    `dockerd` is running.

    A pid file is stale if the process that it names has ended, or is not Docker's. A stale file keeps Docker
    from starting: Docker believes that it is already running, or waits for a containerd that does not run.
    """
    alive = {}
    for name, program in (
        ("docker.pid", "dockerd"),
        ("docker/containerd/containerd.pid", "containerd"),
    ):
        file = run_folder / name
        try:
            number = int(file.read_text(encoding="ascii"))
            comm = Path(f"/proc/{number}/comm").read_text(encoding="utf-8").strip()
        except (FileNotFoundError, ValueError):
            comm = ""
        alive[program] = comm == program
        if not alive[program]:
            file.unlink(missing_ok=True)
    return alive["dockerd"]


def _await_engine(seconds: float, daemon: subprocess.Popen[bytes] | None = None) -> str:
    """Waits until Docker answers, and returns its version. Returns an empty string if Docker does not answer
    within `seconds`, or if the process `daemon` ends."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return _version()
        except AirError:
            dead = daemon is not None and daemon.poll() is not None
            if dead or time.monotonic() > deadline:
                return ""
        time.sleep(0.2)


def _say(line: str) -> None:
    print(line, flush=True)
