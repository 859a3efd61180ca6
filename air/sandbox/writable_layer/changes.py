"""Asks the container engine which files of a container differ from its image.

The engine compares the container's own layer with the image. No program in the container takes part, so
commands cannot falsify the answer. The engine does not see files in mounted folders.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from air.errors import BoxDiedError, BoxFileError, ConfigError
from air.sandbox.contract.entries import Change
from air.sandbox.docker import engine, oci_runtime
from air.sandbox.guest.copy_python import HOME
from air.sandbox.guest.files import holds

MOST_BYTES = 64 << 20
"""Maximum size in bytes of the container engine's answer that lists the changed files of a container."""
_PIECE = 1 << 18
_KINDS = {0: "changed", 1: "added", 2: "deleted"}
_ENGINES = ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/etc/mtab", "/.dockerenv")
"""Paths of files that container engines create in every container. They do not count as changes of the
container's commands."""


async def changes(
    container: str, image: Mapping[str, Any], folder: str, made: Sequence[str], most: int
) -> list[Change]:
    """Returns the changes of a container in `folder` and below it, sorted by path; see `Box.changed`.

    `container` is the container's id. `image` is the field `Config` of the container engine's description of
    the container's image. `made` are the absolute paths of the folders that air itself created in the
    container; they are not reported as added. `most` is the maximum number of changes. Raises the errors of
    `Box.changed`.
    """
    check(image, folder)
    rows = await engine.in_thread(lambda: _rows(container))
    kept = list(below(rows, folder, {*made}))
    if len(kept) > most:
        raise BoxFileError(f"{folder!r}: more than {most} files were changed")
    return sorted(kept, key=lambda change: change.path.split("/"))


def check(image: Mapping[str, Any], folder: str) -> None:
    """Raises ConfigError if the changes in `folder` cannot be found: if `folder` is not an absolute path in
    normal form (without `..`, for instance), or if the container engine cannot see all changes in it, because
    of the OCI runtime or of a volume that the image declares. `image` has the image's settings (the field
    `Config` of the engine's description)."""
    if folder != posixpath.normpath(folder) or not folder.startswith("/"):
        raise ConfigError(
            f"the folder {folder!r} is not an absolute path in normal form",
            remedy="give a path such as /workspace/results, without `..` and without a final `/`",
        )
    # Only these runtimes' containers write to the layer that the engine compares with the image.
    if (runtime := oci_runtime.name()) not in oci_runtime.NATIVE:
        raise ConfigError(
            f"containers of the runtime {runtime!r} hide their changes from the engine",
            where=oci_runtime.SETTING,
            remedy=f"unset {oci_runtime.SETTING}, or name the files to take",
        )
    for volume in image.get("Volumes") or {}:
        volume = posixpath.normpath(volume)
        if holds(volume, folder) or _inside(folder, volume):
            raise ConfigError(
                f"changes in {folder} cannot be found: the image declares the volume {volume}, and "
                "container engines report no changes in volumes",
                remedy="remove `VOLUME` from the image's Dockerfile, or name the files to take",
            )


def _inside(folder: str, path: str) -> bool:
    return folder == "/" or holds(folder, path)


def below(rows: Sequence[Mapping[str, Any]], folder: str, made: set[str]) -> Iterator[Change]:
    """Yields the differences between a container and its image in `folder` and below it. Leaves out folders
    that differ only in their contents.

    `rows` is the container engine's list of differences, as `_rows` returns it. `made` are the folders that
    air itself created in the container; they are not reported as added.
    """
    if any(
        row["Kind"] == 2 and row["Path"] != folder and holds(row["Path"], folder) for row in rows
    ):
        yield Change(folder, "deleted")  # together with a folder around it
    rows = [row for row in rows if _inside(folder, row["Path"])]
    rows = [row for row in rows if row["Path"] not in _ENGINES and not holds(HOME, row["Path"])]
    around = {row["Path"].rpartition("/")[0] for row in rows}
    for row in rows:
        path, kind = row["Path"], _KINDS[row["Kind"]]
        only_around = kind == "changed" and path in around
        if only_around or (kind == "added" and path in made):
            continue
        yield Change(path, kind)  # type: ignore[arg-type]  # one of three


def _rows(container: str) -> list[dict[str, Any]]:
    """Asks the container engine how a container differs from its image, and returns the answer: dicts with a
    `Path` and a `Kind` (a key of `_KINDS`). Raises BoxFileError if the answer is larger than `MOST_BYTES`,
    BoxDiedError if the engine fails. Blocks."""
    data = bytearray()
    for piece in answer(f"containers/{container}/changes"):
        data += piece
        if len(data) > MOST_BYTES:
            raise BoxFileError("far too many files were changed")
    return json.loads(data) or []


def answer(path: str) -> Iterator[bytes]:
    """Sends a GET request to the container engine, and yields the answer's body in pieces, because the answer
    may be large. `path` is the URL's path after the API version, such as `containers/ID/changes`. Raises
    BoxDiedError if the request fails. Blocks."""
    client = engine.client()
    url = f"{client.base_url}/v{client.api_version}/{path}"
    try:
        with closing(client.get(url, stream=True, timeout=client.timeout)) as response:
            response.raise_for_status()
            yield from response.iter_content(_PIECE)
    except engine.FOREIGN as error:
        raise BoxDiedError(f"the Docker engine failed: {engine.reason(error)}") from error
