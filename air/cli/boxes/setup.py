"""`air setup`: a Docker engine and the base image, made ready where they are not.

Starts an engine that is installed; installs one from the distribution's packages (apt) where none
is and this process is root. A running engine is used as it is, never reconfigured. Where Docker
cannot be had, one line says what the process box does not isolate and the command succeeds, unless
`AIR_REQUIRE_DOCKER=1`: then it fails with exit code 1.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from air.errors import AirError, BoxStartError, InfrastructureError, MissingError
from air.sandbox.contract.box import NOT_ISOLATED

HELP = "make Docker and the base image ready (done once; harmless to repeat)"
_START_SECONDS = 60
_CAP_SYS_ADMIN = 1 << 21


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`air setup` takes no options."""
    del parser


def run(args: argparse.Namespace) -> int:
    """Makes the machine ready; 1 where Docker is required and cannot be had, 0 else."""
    del args
    from air.sandbox.docker import images

    try:
        version = ensure_engine()
        images.ensure("base", say=_say)
    except (MissingError, InfrastructureError) as error:
        if os.environ.get("AIR_REQUIRE_DOCKER") == "1":
            print(f"air setup: AIR_REQUIRE_DOCKER=1, and {error}", file=sys.stderr)
            return 1
        print(f"No Docker boxes: {error}. {NOT_ISOLATED}.", flush=True)
        return 0
    _say(f"Docker {version} and image air-base are ready.")
    return 0


def ensure_engine() -> str:
    """The version of the Docker engine, started or installed first if need be.

    Raises:
        MissingError: there is none, and it is not ours to install or start.
        BoxStartError: installing or starting it failed.
    """
    try:
        return _version()
    except AirError as error:
        _refuse(error)
    from air.sandbox.docker import base_image

    if _dockerd() is None:
        if shutil.which("apt-get") is None:
            raise MissingError(
                "Docker is not installed and this is not a Debian or Ubuntu",
                remedy="install Docker by your distribution's means and run this again",
            )
        _say("Installing Docker from the distribution's packages (docker.io).")
        base_image.apt_install("docker.io", "iptables")
    return _start()


def _refuse(error: AirError) -> None:
    """Raises where the missing engine cannot be mended from here; says what would mend it."""
    if os.environ.get("DOCKER_HOST"):
        raise MissingError(str(error), where="DOCKER_HOST", remedy="mend or unset it")
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

    from air.sandbox.docker import sdk

    with sdk.engine() as client:
        return str(client.version()["Version"])


def _dockerd() -> str | None:
    """Where the engine's program is; `su` keeps a user's PATH, which lacks the sbin folders."""
    return shutil.which("dockerd", path=os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin")


def _privileged() -> bool:
    """Whether this process may mount, without which no engine starts."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    effective = next(line.split()[1] for line in lines if line.startswith("CapEff"))
    return bool(int(effective, 16) & _CAP_SYS_ADMIN)


def _start() -> str:
    """Starts the installed engine by whatever starts services here; returns its version.

    Raises:
        BoxStartError: it does not answer in time; names its log.
    """
    if answered := _await_engine(2):  # the package may have started it
        return answered
    _say("Starting Docker.")
    if Path("/run/systemd/system").is_dir():
        from air.sandbox.docker import base_image

        base_image.run(["systemctl", "start", "docker"], "systemctl start docker")
        if answered := _await_engine(_START_SECONDS):
            return answered
        raise BoxStartError("Docker was started but does not answer — see `journalctl -u docker`")
    return _start_directly(Path("/run"), Path("/var/log/dockerd.log"))


def _start_directly(run_folder: Path, log: Path) -> str:
    """Starts dockerd in a session of its own, so that it outlives this command."""
    if clear_stale_pids(run_folder):
        if answered := _await_engine(_START_SECONDS):
            return answered
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
    if answered := _await_engine(_START_SECONDS, daemon):
        daemon.returncode = 0  # left running on purpose: no warning about a live child
        return answered
    ended = daemon.poll()
    if ended is None:
        daemon.kill()
        daemon.wait()
    text = log.read_bytes()[offset:].decode("utf-8", "replace")
    lines = [line for line in text.splitlines() if line.strip()]
    last = lines[-1].split("msg=")[-1][:300] if lines else "it printed nothing"
    state = "does not answer" if ended is None else f"ended with status {ended}"
    raise BoxStartError(f"Docker was started but {state}: {last} — see {log}")


def clear_stale_pids(run_folder: Path) -> bool:
    """Removes pid files whose process is gone or is another program; True if a dockerd lives.

    The engine believes a pid file as soon as any process has that number, and then refuses to
    start, or waits for a containerd that is not there.
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
    """Its version as soon as it answers; empty if it has not in `seconds`, or `daemon` ended."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return _version()
        except AirError:
            ended = daemon is not None and daemon.poll() is not None
            if ended or time.monotonic() > deadline:
                return ""
        time.sleep(0.2)


def _say(line: str) -> None:
    print(line, flush=True)
