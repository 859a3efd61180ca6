"""Builds air's container images from `images/<name>/Dockerfile`, tags them `air-<name>`, and describes them.

`name` is either the name of a folder that air ships (`base`, also written as its tag `air-base`), or the path
of a user's folder, which contains a slash. An image's label `air.recipe` holds the digest of its folder.
Builds use the proxies and certificates of the environment, but the image does not contain them. All functions
raise MissingError if no container engine answers, and BoxStartError if the engine fails.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from air import paths
from air.errors import BoxStartError, InfrastructureError, MissingError, UsageError
from air.sandbox.docker import base_image
from air.sandbox.docker.base_image import Say
from air.sandbox.pool.gpus import inventory

RECIPE_LABEL = "air.recipe"
STAGE_LABEL = "air.stage=build"
_PREFIX = "air-"
_SYSTEM_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")
PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy")


@dataclass(frozen=True)
class Image:
    """A container image that air can build."""

    name: str
    """The tag of the image, in the form that `BoxSpec.image` takes."""
    id: str
    """The container engine's id of the image, `sha256:…`. Empty if the image is not built."""
    size: int
    """The size of the image on disk in bytes. 0 if the image is not built."""
    current: bool
    """Whether the image is up to date: built from the present contents of its folder."""


def why_not_ready(name: str = "air-base") -> str:
    """Returns the reason why boxes of the image `name` cannot start on this machine, in one line. Returns ""
    if they can start."""
    try:
        return "" if describe(name).id else f"image {_tag(name)} is not built"
    except (UsageError, InfrastructureError) as error:
        return str(error)


def recipe(name: str) -> str:
    """Returns a digest of all files in the folder from which the image `name` is built. Air compares it with
    the built image's label `air.recipe`: if they differ, the folder has changed since the build. Raises
    MissingError if the folder has no Dockerfile."""
    folder, total = _folder(name), hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        entry = f"{path.relative_to(folder).as_posix()}\0{path.stat().st_mode & 0o111:o}\0"
        total.update(entry.encode() + hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def describe(name: str) -> Image:
    """Returns a description of the image `name`, whether the image is built or not."""
    from air.sandbox.docker import engine

    tag, digest = _tag(name), recipe(name)
    image = engine.image(tag)
    if image is None:
        return Image(tag, "", 0, False)
    labels = image["Config"].get("Labels") or {}
    return Image(tag, str(image["Id"]), int(image["Size"]), labels.get(RECIPE_LABEL) == digest)


def ls() -> list[Image]:
    """Returns descriptions of all images that air ships (those with a folder below air's `images/`), built or
    not, sorted by name."""
    return [
        describe(path.parent.name) for path in sorted(paths.shipped("images").glob("*/Dockerfile"))
    ]


def digest(name: str) -> str:
    """Returns the container engine's id of the image `name`. Raises MissingError if it is not built."""
    if not (image_id := describe(name).id):
        remedy = f"run `air images build {_tag(name).removeprefix(_PREFIX)}`"
        raise MissingError("image is not built", where=_tag(name), remedy=remedy)
    return image_id


def ensure(name: str, *, say: Say = print) -> str:
    """Builds the image `name` unless it is up to date, and returns the image's id. Concurrent calls build the
    image only once. `say` gets lines of progress."""
    if (image := describe(name)).current:
        return image.id
    with paths.locked(_lock()):
        if (image := describe(name)).current:
            return image.id
        return _build(name, base=None, ca_bundle=trusted(), say=say)


def build(
    name: str, *, base: str | None = None, ca_bundle: Path | None = None, say: Say = print
) -> str:
    """Builds the image `name`, even if it is up to date, and returns the image's id.

    `base` is the tag of the base image; by default the one that the Dockerfile names. `ca_bundle` is a PEM
    file of the certificate authorities that the build trusts; by default the file that `trusted()` returns.
    `say` gets lines of progress.
    """
    with paths.locked(_lock()):
        return _build(name, base=base, ca_bundle=ca_bundle or trusted(), say=say)


def _build(name: str, *, base: str | None, ca_bundle: Path | None, say: Say) -> str:
    from air.sandbox.docker import engine

    tag, folder = _tag(name), _folder(name)
    context = _context(folder, ca_bundle)
    base = base or base_image.find_base(_declared_base(folder), say=say)
    say(f"Building image {tag} from {base}.")
    # Docker leaves the proxies' build arguments out of the image's history.
    proxies = {k: v for k, v in os.environ.items() if k.lower() in PROXIES and v}
    with engine.translating(f"building {tag}"):
        client = engine.client()
        stream = client.build(
            fileobj=context,
            custom_context=True,
            tag=tag,
            buildargs={"BASE": base} | _cuda(folder) | proxies,
            labels={RECIPE_LABEL: recipe(name)},
            network_mode="host",
            rm=True,
            forcerm=True,
            decode=True,
        )
        _follow(stream, f"building {tag}")
        for label in (STAGE_LABEL, RECIPE_LABEL):  # the build's stage, and the image it replaced
            try:
                client.prune_images(filters={"dangling": True, "label": label})
            except (
                engine.FOREIGN
            ) as error:  # the image is built: whatever remains only costs disk space
                say(f"Images left by the build were not removed: {engine.reason(error)}.")
        return str(client.inspect_image(tag)["Id"])


def _cuda(folder: Path) -> dict[str, str]:
    """Returns the build argument `CUDA` for the Dockerfile in `folder`, as the dict `{"CUDA": value}`. The
    value is CUDA's major version, or "" on a machine without GPUs. Returns an empty dict if the Dockerfile
    does not declare the argument."""
    if "\nARG CUDA=" not in (folder / "Dockerfile").read_text(encoding="utf-8"):
        return {}
    return {"CUDA": "12" if inventory() else ""}


def _follow(stream: Iterator[dict[str, Any]], doing: str) -> None:
    """Reads `stream`, the container engine's messages about a build, until the build ends. Raises
    BoxStartError with the reason if the build failed. `doing` says for the error message what is built."""
    tail: list[str] = []
    for event in stream:
        lines = [line.strip() for line in event.get("stream", "").splitlines()]
        tail = (tail + [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines if line])[-40:]
        if "error" in event:
            raise BoxStartError(f"{doing}: {base_image.failure_line(tail, event['error'])}")


def _context(folder: Path, ca_bundle: Path | None) -> io.BytesIO:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.add(folder, arcname=".")
        if ca_bundle is not None:
            if not ca_bundle.is_file():
                raise MissingError("no such CA bundle", where=str(ca_bundle))
            tar.add(ca_bundle.resolve(), arcname="ca.crt")
    buffer.seek(0)
    return buffer


def trusted() -> Path | None:
    """Returns the PEM file of certificate authorities that builds trust, or None if there is no such file.

    If the environment variable `AIR_CA_BUNDLE` is set, returns the file that it names. Otherwise, returns the
    first of these files that exists: the file that the variable `SSL_CERT_FILE` names, Debian's system file,
    Red Hat's system file.

    The system files count here, but not for images of tasks (see `air.sandbox.images.build.authorities`),
    because the file does not stay in air's own images.
    """
    if bundle := os.environ.get("AIR_CA_BUNDLE"):
        return Path(bundle).expanduser()
    candidates = [os.environ.get("SSL_CERT_FILE", ""), *_SYSTEM_BUNDLES]
    return next((Path(name) for name in candidates if name and Path(name).is_file()), None)


def _declared_base(folder: Path) -> str:
    text = (folder / "Dockerfile").read_text(encoding="utf-8")
    line = re.search(r"^ARG BASE=(\S+)", text, re.MULTILINE)
    if line is None:
        raise MissingError("no `ARG BASE=…` line", where=str(folder / "Dockerfile"))
    return line[1]


def _tag(name: str) -> str:
    short = Path(name).resolve().name if "/" in name else name.removeprefix(_PREFIX)
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", short):
        raise UsageError(
            "not a name for an image", where=repr(name), remedy="use a-z, 0-9, `.`, `_` and `-`"
        )
    return _PREFIX + short


def _folder(name: str) -> Path:
    tag = _tag(name)
    shipped_folder = paths.shipped("images") / tag.removeprefix(_PREFIX)
    folder = Path(name) if "/" in name else shipped_folder
    if folder != shipped_folder and (shipped_folder / "Dockerfile").is_file():
        raise UsageError(f"{tag} is an image of air's own", where=name, remedy="rename the folder")
    if not (folder / "Dockerfile").is_file():
        raise MissingError("no Dockerfile there", where=str(folder), remedy="see `air images ls`")
    return folder


def _lock() -> Path:
    """Returns the path of the file that each build locks, so that only one build runs at a time. Needed
    because a build, at its end, removes air's untagged ("dangling") images, and another running build may
    still use such an image."""
    return paths.cache() / "locks" / "images.lock"
