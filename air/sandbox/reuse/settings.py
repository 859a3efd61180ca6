"""Makes the configuration that lets a container serve several callers, one after another. It is part of the
configuration of the guest (air's program inside the container)."""

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

GUEST_MODULES = ("prestarted_python", "resets")
"""The modules of this folder that the guest (air's program inside the box) loads if the box is reusable. Each
module imports only modules that come before it in this tuple."""


def reuse(spec: BoxSpec, folders: Iterable[str]) -> dict[str, Any]:
    """Returns the part of a box's configuration that lets the box serve several callers, one after another: a
    dict with the one key `reuse`, or an empty dict if `spec` does not make the box reusable. The guest, air's
    program inside the box, reads it.

    `folders` are the absolute paths, in the box, of the folders that commands can write, except `/dev/shm`,
    which is added.
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
    """Returns, in Base64, a zip file with one file: `sitecustomize.py`, whose source is `zygote.py` without
    comments and docstrings. Python imports a module of this name at its start."""
    source = _stripped(Path(__file__).with_name("zygote.py"))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo("sitecustomize.py"), source)
    return base64.b64encode(buffer.getvalue()).decode()
