"""Where an image's base comes from: here, pulled, or bootstrapped from Debian's packages.

Bootstrapping needs root, `debootstrap` (installed if apt can) and a package server; the result is
kept as the image `air-bootstrap`, so that a later build starts at once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from air import paths
from air.errors import BoxStartError, boundary
from air.sandbox.docker import sdk
from air.sandbox.docker.sdk import Say

SUITE = "bookworm"
BOOTSTRAP_TAG = f"air-bootstrap:{SUITE}"
_PULL_SILENCE_SECONDS = 20
_NEEDED_BYTES = 800_000_000
_EXCLUDED = (
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "var/cache/apt",
    "var/lib/apt/lists",
)
_APT_ENV = {"DEBIAN_FRONTEND": "noninteractive", "NEEDRESTART_SUSPEND": "1", "LC_ALL": "C"}


def find_base(wanted: str, *, say: Say) -> str:
    """The image to build on: `wanted` if it is here or can be pulled, else a bootstrapped one.

    Raises:
        BoxStartError: it can be neither pulled nor bootstrapped; says why for both.
    """
    if _here(wanted):
        return wanted
    failure = _pull(wanted)
    if not failure:
        say(f"Pulled {wanted}.")
        return wanted
    if _here(BOOTSTRAP_TAG):
        return BOOTSTRAP_TAG
    say(f"{wanted} cannot be pulled ({failure}): bootstrapping Debian {SUITE} (about a minute).")
    _bootstrap(failure)
    return BOOTSTRAP_TAG


def apt_install(*packages: str) -> None:
    """Installs packages of the distribution, without questions. Needs root and apt-get.

    Raises:
        BoxStartError: apt failed; says its last error and what to do.
    """
    run(["apt-get", "update", "-q"], "apt-get update")
    options = ["-qy", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=120"]
    run(["apt-get", "install", *options, *packages], f"apt-get install {' '.join(packages)}")


def run(argv: list[str], doing: str) -> None:
    """Runs a program to its end, quietly; a failure says the line of its output to blame.

    Raises:
        BoxStartError: it cannot be started or ends with a status other than 0.
    """
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **_APT_ENV},
            check=False,
        )
    except OSError as error:
        raise BoxStartError(f"{doing}: {error.strerror or error}") from error
    if done.returncode:
        tail = [line.strip() for line in done.stdout.decode("utf-8", "replace").splitlines()]
        what = sdk.blame(tail[-60:], f"failed with status {done.returncode}")
        raise BoxStartError(f"{doing} {what}")


def _here(tag: str) -> bool:
    from docker.errors import ImageNotFound

    with sdk.engine() as client:
        try:
            client.images.get(tag)
        except ImageNotFound:
            return False
        return True


def _pull(tag: str) -> str:
    """Pulls an image; returns why it could not, empty if it could. Silence counts as refusal."""
    from docker.errors import APIError
    from requests.exceptions import RequestException

    with sdk.engine(_PULL_SILENCE_SECONDS) as client:
        try:
            for event in client.api.pull(tag, stream=True, decode=True):
                if "error" in event:
                    return _short(event["error"])
        except (APIError, RequestException) as error:
            return _short(sdk.reason(error))
    return "" if _here(tag) else "nothing came"


def _short(text: str) -> str:
    """The last clause of an engine's nested error."""
    return text.strip().rsplit(": ", 1)[-1][:120]


def _bootstrap(failure: str) -> None:
    if os.geteuid() != 0:
        raise BoxStartError(
            f"the base image cannot be pulled ({failure}) and bootstrapping needs root — give a "
            "base that is here: `air images build base --base IMAGE`"
        )
    if shutil.which("debootstrap") is None:
        apt_install("debootstrap")
    # In the cache folder, since /tmp is often small, or mounted noexec or nodev.
    with (
        boundary(BoxStartError, "bootstrapping the base image", OSError),
        tempfile.TemporaryDirectory(prefix="bootstrap-", dir=_made(paths.cache())) as name,
    ):
        if (free := shutil.disk_usage(name).free) < _NEEDED_BYTES:
            raise BoxStartError(
                f"bootstrapping needs {_NEEDED_BYTES / 1e9:.1f} GB in {paths.cache()}, which has "
                f"{free / 1e9:.1f} GB — free some, or set AIR_CACHE"
            )
        root = Path(name) / "root"
        argv = ["debootstrap", "--variant=minbase", *_keyring(), SUITE, str(root), *_mirror()]
        run(argv, "debootstrap")
        for excluded in _EXCLUDED:
            for child in (root / excluded).iterdir():
                shutil.rmtree(
                    child
                ) if child.is_dir() and not child.is_symlink() else child.unlink()
        _import(root)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _keyring() -> list[str]:
    """Trusts the machine's Debian keys where it has them; debootstrap's own default else."""
    keyring = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
    return [f"--keyring={keyring}"] if keyring.is_file() else []


def _mirror() -> list[str]:
    """The server from which this machine's apt already takes the suite, if it does."""
    argv = ["apt-get", "indextargets", "--format", "$(SITE)"]
    argv += ["Created-By: Packages", f"Codename: {SUITE}", "Component: main"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return []
    return done.stdout.split()[:1]


def _import(root: Path) -> None:
    with (
        subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE) as tar,
        sdk.engine(timeout=300) as client,
    ):
        repository, tag = BOOTSTRAP_TAG.split(":")
        assert tar.stdout is not None
        client.api.import_image_from_stream(tar.stdout, repository=repository, tag=tag)
    if tar.returncode:
        raise BoxStartError(f"packing the bootstrapped system failed with status {tar.returncode}")
