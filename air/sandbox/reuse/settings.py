"""Makes the part of a guest's configuration that lets a container box serve several callers, one after
another."""

from __future__ import annotations

import base64
import io
import zipfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from air.sandbox.contract.box import WORKSPACE, BoxSpec
from air.sandbox.wire.connection import stripped

GUEST_MODULES = ("prestarted", "resets")
"""The modules of this folder that run in the guest of a reusable box. Each module imports only modules that
come before it in this tuple."""


def reuse(spec: BoxSpec, folders: Iterable[str]) -> dict[str, Any]:
    """Returns the part of the guest's configuration for `BoxSpec.reusable` and `BoxSpec.prestart`. Returns an
    empty dict if the box is not reusable.

    `folders` are the absolute paths, in the box, of the folders that commands can write. `/dev/shm` is
    added.
    """
    if not spec.reusable:
        return {}
    folder = Path(__file__).parent
    sources = {name: _stripped(folder / f"{name}.py") for name in GUEST_MODULES}
    config: dict[str, Any] = {"sources": sources}
    config["folders"] = [*folders, "/dev/shm"]
    if spec.prestart:
        argv = list(spec.prestart)
        config["prestart"] = {"argv": argv, "cwd": WORKSPACE, "program": _program()}
    return {"reuse": config}


@cache
def _stripped(file: Path) -> str:
    return stripped(file.read_text(encoding="utf-8"))


@cache
def _program() -> str:
    """Returns a zip file, encoded in Base64, that contains only the module `sitecustomize`, whose source is
    `zygote.py`."""
    source = _stripped(Path(__file__).with_name("zygote.py"))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo("sitecustomize.py"), source)
    return base64.b64encode(buffer.getvalue()).decode()
