"""What a container's guest gets so that the box can serve several users, one after another."""

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


def reuse(spec: BoxSpec, folders: Iterable[str]) -> dict[str, Any]:
    """Returns the guest's configuration of `BoxSpec.reusable` and `prestart`; empty for other boxes.

    `folders` are the folders that commands can write.
    """
    if not spec.reusable:
        return {}
    config: dict[str, Any] = {"source": _stripped(Path(__file__).with_name("resets.py"))}
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
    """Returns a zip file in Base64, whose only module is `sitecustomize`."""
    source = _stripped(Path(__file__).with_name("zygote.py"))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo("sitecustomize.py"), source)
    return base64.b64encode(buffer.getvalue()).decode()
