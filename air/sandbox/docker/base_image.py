"""Provides the base image on which air builds an image: the wanted image, or a Debian image that air makes
itself.

Air makes ("bootstraps") the Debian image only if the wanted image cannot be pulled: it installs Debian's
packages into an empty folder and imports the folder as the image `air-bootstrap`. This needs root, the
program `debootstrap`, and access to a package server.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from air import paths
from air.errors import BoxStartError, boundary

Say = Callable[[str], None]
"""A function that prints one line of progress."""
SUITE = "bookworm"
BOOTSTRAP_TAG = f"air-bootstrap:{SUITE}"
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
    """Returns the tag of the base image to build on: `wanted` if this image exists here or can be pulled,
    otherwise the tag of a Debian image that air makes itself ("bootstraps").

    Bootstrapping takes about a minute, and is done only once. Progress is reported through `say`. If both
    pulling and bootstrapping fail, raises BoxStartError with both reasons.
    """
    if _here(wanted):
        return wanted
    failure = pull(wanted)
    if not failure:
        say(f"Pulled {wanted}.")
        return wanted
    if _here(BOOTSTRAP_TAG):
        return BOOTSTRAP_TAG
    say(f"{wanted} cannot be pulled ({failure}): bootstrapping Debian {SUITE} (about a minute).")
    _bootstrap(failure)
    return BOOTSTRAP_TAG


def apt_install(*packages: str) -> None:
    """Installs packages on this machine with apt-get, without asking questions. Needs root. Raises
    BoxStartError if that fails."""
    run(["apt-get", "update", "-q"], "apt-get update")
    options = ["-qy", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=120"]
    run(["apt-get", "install", *options, *packages], f"apt-get install {' '.join(packages)}")


def run(argv: list[str], doing: str) -> None:
    """Runs a program to its end, without showing its output. `argv` is the program and its arguments.

    `doing` names the program's purpose in error messages. Raises BoxStartError if the program cannot be
    started or fails; the error quotes the output line that seems to be the reason.
    """
    try:
        process = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **_APT_ENV},
            check=False,
        )
    except OSError as error:
        raise BoxStartError(f"{doing}: {error.strerror or error}") from error
    if process.returncode:
        tail = [line.strip() for line in process.stdout.decode("utf-8", "replace").splitlines()]
        what = failure_line(tail[-60:], f"failed with status {process.returncode}")
        raise BoxStartError(f"{doing} {what}")


def failure_line(tail: list[str], error: str) -> str:
    """Returns one line that explains why an image's build or a program failed: the text `error`, the last
    line with an error in `tail` (the last lines of its output) and, for known causes, a remedy."""
    text = " ".join(error.split())
    errors = [line for line in tail if re.match(r"(E:|Err|W: Failed|.*[Ee]rror|.*No space)", line)]
    line = f"{text} ({errors[-1][:300]})" if errors else text
    whole = "\n".join([*tail, error])
    if "o space left" in whole or "enough free space" in whole:
        return f"{line} — the disk is full: free some (`docker system df` shows what Docker holds)"
    if re.search("resolv|Could not connect|ertificate|Failed getting release|t download", whole):
        return (
            f"{line} — the package server cannot be reached: set http_proxy/https_proxy, or name a "
            "CA bundle in AIR_CA_BUNDLE"
        )
    return line


def _here(tag: str) -> bool:
    from air.sandbox.docker import engine

    return engine.image(tag) is not None


def pull(tag: str) -> str:
    """Pulls the image with the tag `tag`. Returns "" if that succeeds, otherwise the reason for the
    failure."""
    from air.sandbox.docker import engine

    try:
        for event in engine.client().pull(tag, stream=True, decode=True):
            if "error" in event:
                return _short(event["error"])
    except engine.FOREIGN as error:
        return _short(engine.reason(error))
    return "" if _here(tag) else "the Docker engine sent nothing"


def _short(text: str) -> str:
    """Returns the text after the last colon in a container engine's error message, which is usually the
    reason, cut to 120 characters."""
    return text.strip().rsplit(": ", 1)[-1][:120]


def _bootstrap(failure: str) -> None:
    if os.geteuid() != 0:
        raise BoxStartError(
            f"the base image cannot be pulled ({failure}) and bootstrapping needs root — give a "
            "base that is here: `air images build base --base IMAGE`"
        )
    if shutil.which("debootstrap") is None:
        apt_install("debootstrap")
    cache = paths.cache()  # not /tmp, which is often small, or mounted noexec or nodev
    with boundary(BoxStartError, "bootstrapping the base image", OSError):
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="bootstrap-", dir=cache) as name:
            _bootstrap_in(Path(name))


def _bootstrap_in(folder: Path) -> None:
    if (free := shutil.disk_usage(folder).free) < _NEEDED_BYTES:
        raise BoxStartError(
            f"bootstrapping needs {_NEEDED_BYTES / 1e9:.1f} GB in {folder.parent}, which has "
            f"{free / 1e9:.1f} GB — free some, or set AIR_CACHE"
        )
    root = folder / "root"
    keyring = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
    options = [f"--keyring={keyring}"] if keyring.is_file() else []
    argv = ["debootstrap", "--variant=minbase", *options, SUITE, str(root), *_mirror()]
    run(argv, "debootstrap")
    for excluded in _EXCLUDED:
        for child in (root / excluded).iterdir():
            remove = shutil.rmtree if child.is_dir() and not child.is_symlink() else Path.unlink
            remove(child)
    _import(root)


def _mirror() -> list[str]:
    """Returns the URL of the server from which this machine's apt gets Debian, as a list with this one item.
    The list is empty if the server is unknown."""
    argv = ["apt-get", "indextargets", "--format", "$(SITE)"]
    argv += ["Created-By: Packages", f"Codename: {SUITE}", "Component: main"]
    try:
        process = subprocess.run(argv, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return []
    return process.stdout.split()[:1]


def _import(root: Path) -> None:
    from air.sandbox.docker import engine

    with (
        subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE) as tar,
        engine.translating("importing the bootstrapped image"),
    ):
        repository, tag = BOOTSTRAP_TAG.split(":")
        assert tar.stdout is not None
        engine.client().import_image_from_stream(tar.stdout, repository=repository, tag=tag)
    if tar.returncode:
        raise BoxStartError(f"packing the bootstrapped system failed with status {tar.returncode}")
