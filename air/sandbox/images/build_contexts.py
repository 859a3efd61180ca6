"""Computes the tags of the images of tasks, and packs the folder of such an image as a build context: the
files that a container engine gets in order to build the image.

The tag of such an image is `air-harbor-` and a digest of its folder, so equal folders share one image.
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

from air.errors import MissingError

PREFIX = "air-harbor-"
DIGITS = 20
AUTHORITIES = "air-authorities.crt"
"""The name of the file with the certificate authorities that a build trusts. The file lies in the build
context, and below `/etc/ssl` in the image."""
CERTIFICATE_VARIABLES = (
    *("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO"),
    "NODE_EXTRA_CA_CERTS",
)


@dataclass(frozen=True)
class WantedImage:
    """A container image that tasks need, and how air gets it: built from a folder, or pulled."""

    tag: str
    """The tag of the image, in the form that `BoxSpec.image` takes."""
    folder: Path | None
    """The folder from which the image is built. None if the image is pulled."""
    seconds: float
    """The time limit of the build in seconds."""
    where: str
    """What needs the image, such as a task, as text for the user."""


def tag(folder: Path) -> str:
    """Computes the tag of the image that is built from `folder`. The tag contains a digest of the folder's
    contents. Builds nothing.

    Raises MissingError if the folder has no Dockerfile.
    """
    if not (folder / "Dockerfile").is_file():
        raise MissingError("no Dockerfile there", where=str(folder), remedy="write one")
    total = hashlib.sha256()
    for name, path in files(folder):
        if path.is_symlink():
            kind, content = "link", os.fsencode(os.readlink(path))  # noqa: PTH115 — not resolved
        elif path.is_dir():
            kind, content = "folder", b""
        else:
            kind = f"file {path.stat().st_mode & 0o111:o}"
            content = hashlib.sha256(path.read_bytes()).digest()
        total.update(b"%d %s %s\0%s" % (len(name), os.fsencode(name), kind.encode(), content))
    return PREFIX + total.hexdigest()[:DIGITS]


def files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yields all files, folders and links below `folder`, sorted, as pairs: the path relative to `folder`,
    and the path itself. Follows no links."""
    for path in sorted(folder.rglob("*")):
        yield path.relative_to(folder).as_posix(), path


def packed(folder: Path, authorities: Path | None) -> io.BytesIO:
    """Returns the build context of a folder, in memory: a tar archive of the folder's files, which a
    container engine gets in order to build the image. Leaves out files that the folder's `.dockerignore`
    excludes.

    `authorities` is a PEM file of certificate authorities, or None. If it is given, each stage of the build
    trusts these authorities, and the image contains the file.
    """
    from docker.utils.build import exclude_paths

    ignored = folder / ".dockerignore"
    text = ignored.read_text(encoding="utf-8") if ignored.is_file() else ""
    patterns = [line.strip() for line in text.splitlines() if line.strip() and line[0] != "#"]
    names = sorted(exclude_paths(str(folder), patterns) | {"Dockerfile"})
    dockerfile = (folder / "Dockerfile").read_bytes()
    if authorities is not None:
        dockerfile = trusting(dockerfile.decode("utf-8", "surrogateescape")).encode(
            "utf-8", "surrogateescape"
        )
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in names:
            if name != "Dockerfile":
                tar.add(folder / name, arcname=name, recursive=False, filter=_of_root)
        _add(tar, "Dockerfile", dockerfile)
        if authorities is not None:
            _add(tar, AUTHORITIES, authorities.read_bytes())
    buffer.seek(0)
    return buffer


def trusting(dockerfile: str) -> str:
    """Returns the text of a Dockerfile with additional lines, which make each build stage trust the
    certificate authorities in the build context.

    The lines set build arguments (`ARG`) that common programs read as environment variables. Build arguments
    apply to the build's commands, but do not stay in the image.
    """
    place = f"/etc/ssl/{AUTHORITIES}"
    added = [f"COPY {AUTHORITIES} {place}"]
    added += [f"ARG {name}={place}" for name in CERTIFICATE_VARIABLES]
    lines: list[str] = []
    begins, in_from = True, False
    for line in dockerfile.splitlines():
        lines.append(line)
        if line.lstrip().startswith("#") or (not begins and not line.strip()):
            continue  # comments and empty lines do not end an instruction of several lines
        in_from = bool(re.match(r"\s*FROM\s", line, re.IGNORECASE)) if begins else in_from
        begins = not line.rstrip().endswith("\\")
        if in_from and begins:
            lines += added
            in_from = False
    return "\n".join([*lines, ""])


_FLAGS = re.compile(
    r"(RUN)\s+(?:--\S+\s+)*--(mount|network|security|device)\b|"
    r"(COPY|ADD)\s+(?:--\S+\s+)*--(link|chmod|parents|exclude|checksum|keep-git-dir|unpack)\b",
    re.IGNORECASE,
)
_HEREDOC = re.compile(r"(?:^|\s)\d*<<-?([\"']?)([A-Za-z_]\w*)\1(?=\s|$)")


def needs_buildkit(folder: Path) -> str:
    """Returns the first instruction in the folder's Dockerfile that only BuildKit (Docker's newer builder,
    which air does not use) understands, such as `line 3: RUN --mount`. Returns "" if there is none."""
    text = (folder / "Dockerfile").read_text("utf-8", "surrogateescape")
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        word = line.split(maxsplit=1)[0].upper() if line.strip() else ""
        if word not in ("RUN", "COPY", "ADD"):
            continue
        if flag := _FLAGS.match(line.strip()):
            return f"line {number}: {word} --{flag[2] or flag[4]}"
        # If `<<` is an operator of the shell's own, no later line consists of the word alone.
        below = {one.strip() for one in lines[number:]}
        if (name := _HEREDOC.search(line)) and name[2] in below:
            return f"line {number}: {word} <<{name[2]}"
    return ""


def _of_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), 0o644
    tar.addfile(member, io.BytesIO(data))
