"""Stores graded artefacts (the files that an agent made) beside the trajectories, so that they can be graded
again later.

A trajectory is the record of one episode. Equal artefacts are stored once, in `artefacts/<first two
characters of the digest>/<digest>.tar.gz`; the digest is a hash. An archive contains only regular files.
Several processes can share one folder.
"""

from __future__ import annotations

import gzip
import io
import logging
import os
import re
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from air import paths
from air.errors import ConfigError, InfrastructureError, boundary

FOLDER = "artefacts"
READ_BYTES = 1_000_000_000
"""The maximum unpacked size, in bytes, of an archive that `read_artefact` accepts."""
_NAME = re.compile(rf"{FOLDER}/[0-9a-f]{{2}}/[0-9a-f]{{1,128}}\.tar\.gz")
_LOG = logging.getLogger(__name__)


class ArtefactStore:
    """Stores graded artefacts (the files that an agent made) as archives in the subfolder `artefacts` of
    `folder`, the folder with the run's trajectories.

    If `folder` is None, nothing is stored. An artefact is not stored if it has more than `most_bytes` bytes
    before compression, or if all archives together would exceed `most_total` bytes.
    """

    def __init__(self, folder: Path | None, *, most_bytes: int, most_total: int) -> None:
        self._folder = folder
        self._most_bytes, self._most_total = most_bytes, most_total
        self._total: int | None = None

    def keep(self, digest: str, files: Mapping[str, bytes]) -> str:
        """Stores an artefact (the files that an agent made), unless a limit is exceeded. `digest` is a hash
        of the artefact, in hex, and `files` maps each path, relative to the agent's workspace, to the file's
        content. Blocks the calling thread.

        Returns the archive's path relative to the trajectories' folder, or "" if the artefact was not stored.
        Raises InfrastructureError if the disk is full or the folder is not writable.
        """
        if self._folder is None or sum(map(len, files.values())) > self._most_bytes:
            return ""
        name = f"{FOLDER}/{digest[:2]}/{digest}.tar.gz"
        target = self._folder / name
        with boundary(InfrastructureError, f"cannot keep {target}", OSError):
            if target.exists():
                return name
            data = _pack(files)
            if self._known_total() + len(data) > self._most_total:
                _LOG.warning(
                    "the limit of %d bytes of artefacts is reached: no more are stored",
                    self._most_total,
                )
                return ""
            paths.write_whole(target, data)
        self._total = self._known_total() + len(data)
        return name

    def _known_total(self) -> int:
        """Returns the total size of the stored archives in bytes. The first call measures it; later changes
        by other processes are not noticed."""
        if self._total is None:
            assert self._folder is not None
            archives = (self._folder / FOLDER).glob("*/*.tar.gz")
            self._total = sum(path.stat().st_size for path in archives)
        return self._total


def artefact_path(folder: Path, kept: str) -> Path:
    """Returns the path of the archive of a stored artefact. The file might not exist.

    `kept` is a path that `ArtefactStore.keep` returned, as a trajectory records it. The trajectory may be
    wrong or malicious, so this function raises ConfigError if `kept` does not have the form of such a path,
    or is a link to a file outside of `folder`.
    """
    path = folder / kept
    if not _NAME.fullmatch(kept):
        raise ConfigError("is not the name of a stored artefact", where=str(path))
    # `Path.resolve` would raise if the path is a link to itself.
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise ConfigError("is a link out of the run's folder", where=str(path))
    return path


def copy_artefact(source: Path, kept: str, folder: Path) -> bool:
    """Copies the archive of one artefact (the files that an agent made) from a folder of trajectories,
    `source`, to another one, `folder`. `kept` is the archive's path relative to each of the two folders.
    Returns True if `folder` then contains the artefact. Returns False if `source` does not contain it, or if
    `kept` does not have the form of such a path.

    Raises ConfigError if the copy would be outside of `folder`, and InfrastructureError if reading or writing
    fails.
    """
    try:
        path = artefact_path(source, kept)
    except ConfigError:
        return False
    if not path.is_file():
        return False
    target = artefact_path(folder, kept)
    with boundary(InfrastructureError, f"cannot keep {target}", OSError):
        if not target.exists():
            paths.write_whole(target, path.read_bytes())
    return True


def read_artefact(folder: Path, kept: str) -> dict[str, bytes]:
    """Returns the contents of the files of a stored artefact, by path relative to the agent's workspace.
    `kept` is the path that `ArtefactStore.keep` returned, relative to `folder`, the folder of trajectories.

    Raises ConfigError if `kept` does not have the form of such a path, or if the archive is missing or
    malformed.
    """
    path = artefact_path(folder, kept)
    files: dict[str, bytes] = {}
    remaining = READ_BYTES
    try:
        with tarfile.open(path, "r:gz") as tar:
            for member in tar:
                parts = PurePosixPath(member.name)
                if not member.isreg() or parts.is_absolute() or ".." in parts.parts:
                    raise ConfigError(
                        "holds a member that is not a file of an artefact", where=str(path)
                    )
                remaining -= member.size
                if remaining < 0:
                    raise ConfigError(f"unpacks to more than {READ_BYTES} bytes", where=str(path))
                file = tar.extractfile(member)
                assert file is not None
                files[member.name] = file.read()
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise ConfigError(f"cannot be read: {error}", where=str(path)) from None
    return files


def _pack(files: Mapping[str, bytes]) -> bytes:
    """Returns the bytes of a tar.gz archive of `files` (contents by path). Equal files always give equal
    bytes."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return gzip.compress(plain.getvalue(), compresslevel=3, mtime=0)
