"""Downloads the files from which a task's data is made, into the folder `<cache>/downloads/<task id>/`.

A file must match its published checksum (MD5). If none is published, the SHA-256 of the file's first download
is stored beside the file, and later the file must match it.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from pathlib import Path

from air import paths
from air.errors import ConfigError, InfrastructureError, MissingError, boundary
from air.tasks.spec import Download, TaskSpec

VARIABLE = "AIR_DOWNLOADS"
"""The environment variable that tells `data.py`, the task's script that makes the data, in which folder the
downloaded files are."""
_CHECKOUT = "AIR_MLGYM_ROOT"
_SILENCE_SECONDS = 60.0


def folder(task: TaskSpec) -> Path:
    """Returns the folder for a task's downloaded files, which might not exist yet."""
    return paths.cache() / "downloads" / task.id


def absent(task: TaskSpec) -> list[str]:
    """Returns the names of the task's declared downloads that are not in the folder of downloads yet."""
    return [d.name for d in task.data.downloads if not (folder(task) / d.name).is_file()]


def command(task: TaskSpec) -> str:
    """Returns the shell command that downloads a task's missing files."""
    root = ""
    if task.source is not None and not os.environ.get(_CHECKOUT):
        root = f" --mlgym-root {shlex.quote(str(task.folder))}"
    return f"air tasks fetch {task.id}{root}"


def checked(task: TaskSpec) -> Path:
    """Returns the folder of a task's downloads, after a check that it contains every declared download with
    the right checksum. Raises MissingError if one is absent or has another checksum. Downloads nothing."""
    if lacks := absent(task):
        raise MissingError(
            f"{', '.join(lacks)} not downloaded",
            where=f"task {task.id}",
            remedy=f"run `{command(task)}`",
        )
    for download in task.data.downloads:
        file = folder(task) / download.name
        if problem := _differs(download, file):
            raise MissingError(problem, where=str(file), remedy="delete it and fetch it again")
    return folder(task)


def fetch(task: TaskSpec) -> Path:
    """Downloads a task's missing files and returns their folder. An interrupted download leaves no partial
    file under the file's name.

    Raises ConfigError if the task has no downloads, and InfrastructureError if a server or the disk failed,
    or a file does not match its published checksum.
    """
    if not task.data.downloads:
        raise ConfigError("its data need no download", where=f"task {task.id}")
    place = folder(task)
    with paths.locked(place.parent / f"{task.id}.lock"):
        place.mkdir(parents=True, exist_ok=True)
        lacks = absent(task)
        for download in task.data.downloads:
            if download.name in lacks:
                _get(download, place / download.name)
    return checked(task)


def _get(download: Download, file: Path) -> None:
    import httpx

    part = file.with_name(f".{file.name}.part")
    doing = f"download of {download.url}"
    try:
        with boundary(InfrastructureError, doing, httpx.HTTPError, OSError):
            _stream(download.url, part)
            if download.md5 and (problem := _differs(download, part)):
                raise InfrastructureError(f"{doing}: {problem}")
            if not download.md5:
                _kept(file).write_text(_digest(part, "sha256"), encoding="ascii")
            part.replace(file)
    finally:
        part.unlink(missing_ok=True)


def _stream(url: str, part: Path) -> None:
    import httpx

    with (
        httpx.stream("GET", url, follow_redirects=True, timeout=_SILENCE_SECONDS) as answer,
        part.open("wb") as out,
    ):
        answer.raise_for_status()
        for chunk in answer.iter_bytes():
            out.write(chunk)


def _differs(download: Download, file: Path) -> str:
    """Returns a message if a downloaded file does not match its checksum; an empty string if it does."""
    kind, expected = ("md5", download.md5) if download.md5 else ("sha256", "")
    if not expected:
        kept = _kept(file)
        if not kept.is_file():
            return f"no checksum of it was kept in {kept.name}"
        expected = kept.read_text(encoding="ascii")
    digest = _digest(file, kind)
    return "" if digest == expected else f"its {kind} is {digest}, expected {expected}"


def _kept(file: Path) -> Path:
    return file.with_name(f"{file.name}.sha256")


def _digest(file: Path, kind: str) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(
            opened, lambda: hashlib.new(kind, usedforsecurity=False)
        ).hexdigest()
