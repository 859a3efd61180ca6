"""What was graded, kept beside the trajectories so that it can be graded again.

`artefacts/<first two of the digest>/<digest>.tar.gz`, each artefact once however often it was graded.
The archives hold regular files only, and are written whole or not at all, so several processes may share
a folder.
"""

from __future__ import annotations

import gzip
import io
import logging
import os
import re
import tarfile
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from air.errors import ConfigError, InfrastructureError, boundary

FOLDER = "artefacts"
READ_BYTES = 1_000_000_000
"""An archive that unpacks to more is not read."""
_NAME = re.compile(rf"{FOLDER}/[0-9a-f]{{2}}/[0-9a-f]{{1,128}}\.tar\.gz")
_LOG = logging.getLogger(__name__)


class ArtefactStore:
    """Keeps artefacts below a folder of trajectories.

    Args:
        folder: the trajectories' folder; None keeps nothing.
        most_bytes: a larger artefact is not kept.
        most_total: no more is kept once all of them together, compressed, have so many bytes.
    """

    def __init__(self, folder: Path | None, *, most_bytes: int, most_total: int) -> None:
        self._folder = folder
        self._most_bytes, self._most_total = most_bytes, most_total
        self._total: int | None = None

    def keep(self, digest: str, files: Mapping[str, bytes]) -> str:
        """Keeps an artefact; blocks on the disk.

        Returns:
            Where it lies, relative to the trajectories' folder; empty where it was not kept.

        Raises:
            InfrastructureError: the disk is full or the folder cannot be written.
        """
        if self._folder is None or sum(map(len, files.values())) > self._most_bytes:
            return ""
        name = f"{FOLDER}/{digest[:2]}/{digest}.tar.gz"
        target = self._folder / name
        with boundary(InfrastructureError, f"cannot keep {target}", OSError):
            if target.exists():
                return name
            data = _packed(files)
            if self._known_total() + len(data) > self._most_total:
                _LOG.warning("artefacts have their %d bytes: no more are kept", self._most_total)
                return ""
            _write_whole(target, data)
        self._total = self._known_total() + len(data)
        return name

    def _known_total(self) -> int:
        """Bytes kept so far; what other processes add meanwhile is not seen."""
        if self._total is None:
            assert self._folder is not None
            found = (self._folder / FOLDER).glob("*/*.tar.gz")
            self._total = sum(path.stat().st_size for path in found)
        return self._total


def artefact_path(folder: Path, kept: str) -> Path:
    """Where an artefact lies that was kept below a folder of trajectories; it need not be there.

    Args:
        kept: what `ArtefactStore.keep` answered, as a trajectory tells it: whoever wrote the file chose it.

    Raises:
        ConfigError: `kept` is no such answer, or leads out of the folder.
    """
    path = folder / kept
    if not _NAME.fullmatch(kept):
        raise ConfigError("is no name of a kept artefact", where=str(path))
    # `Path.resolve` would raise at a link to itself.
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise ConfigError("is a link to outside of the run's folder", where=str(path))
    return path


def copy_artefact(source: Path, kept: str, folder: Path) -> bool:
    """Copies a kept artefact to another folder of trajectories, where it is not there yet.

    Args:
        source: the folder of trajectories below which it was kept.
        kept: as in `artefact_path`.

    Returns:
        Whether it was kept at all: False where `kept` names nothing below `source`.

    Raises:
        ConfigError: it would be written outside of `folder`.
        InfrastructureError: it cannot be read, the disk is full or the folder cannot be written.
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
            _write_whole(target, path.read_bytes())
    return True


def read_artefact(folder: Path, kept: str) -> dict[str, bytes]:
    """The files of an artefact that was kept below a folder of trajectories, by their path relative to the
    workspace.

    Args:
        kept: what `ArtefactStore.keep` answered.

    Raises:
        ConfigError: `kept` is no such answer, it is not there, or no such archive.
    """
    path = artefact_path(folder, kept)
    files: dict[str, bytes] = {}
    left = READ_BYTES
    try:
        with tarfile.open(path, "r:gz") as tar:
            for member in tar:
                parts = PurePosixPath(member.name)
                if not member.isreg() or parts.is_absolute() or ".." in parts.parts:
                    raise ConfigError("holds something that is no artefact", where=str(path))
                left -= member.size
                if left < 0:
                    raise ConfigError(f"unpacks to more than {READ_BYTES} bytes", where=str(path))
                file = tar.extractfile(member)
                assert file is not None
                files[member.name] = file.read()
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise ConfigError(f"cannot be read: {error}", where=str(path)) from None
    return files


def _packed(files: Mapping[str, bytes]) -> bytes:
    """The same bytes for the same files."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return gzip.compress(plain.getvalue(), compresslevel=3, mtime=0)


def _write_whole(target: Path, data: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(data)
        Path(name).replace(target)
    except BaseException:  # cancellation too: no half-written file is left
        Path(name).unlink(missing_ok=True)
        raise
