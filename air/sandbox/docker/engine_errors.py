"""Translates error texts of Docker or Podman into air's errors. All functions are pure."""

from __future__ import annotations

import re
from typing import Literal

from air.errors import AirError, BoxStartError, MissingError

Kind = Literal["missing-engine", "missing-image", "missing-gpus", "transient", "final"]

_NO_ENGINE = {
    "permission denied|permissionerror": "permission denied on its socket",
    "no such file or directory|filenotfounderror": "its socket is not there",
    "connection refused|connectionrefusederror": "connection refused",
    "name or service not known": "its host is not known",
    "invalid bind address": "DOCKER_HOST is not an address",
}
_FINAL = re.compile(
    r"no space left|executable file not found|not found in \$path|exec format error|invalid"
    r"|minimum memory limit|unknown runtime|not supported|range of cpus|cannot be empty|cgroup controller"
)
_NO_PYTHON = re.compile(
    r"""["`]python3["`](: executable file)? not found in \$PATH|"python3": permission denied"""
    r"|python3: error while loading shared libraries|<no Python frame>"
    r"|(SyntaxError|ImportError|ModuleNotFoundError): [^)]*|Python [\d.]+ is older than 3\.8"
)


class TransientStartError(BoxStartError):
    """The error that is raised if a box did not start for a reason that may be temporary, so that another
    attempt may succeed."""


class EngineAwayError(TransientStartError):
    """The error that is raised if the container engine answered earlier but does not answer now. It may be
    restarting."""


def classify(status: int | None, text: str) -> Kind:
    """Returns the kind of a failed request to the container engine: `missing-engine` (the engine cannot be
    reached), `missing-image` (there is no such image), `missing-gpus` (the engine cannot provide GPUs),
    `final` (the same request would fail again) or `transient` (any other failure; another attempt may
    succeed). `status` is the response's HTTP status (None: there was no response), `text` the error
    message."""
    low = text.lower()
    if status is None:
        return "missing-engine" if engine_missing(text) else "transient"
    if status == 404 and "no such image" in low:
        return "missing-image"
    if "could not select device driver" in low:
        return "missing-gpus"
    if _FINAL.search(low) or status in (400, 401, 403):
        return "final"
    return "transient"


def engine_missing(text: str) -> str:
    """Returns the reason why the container engine cannot be reached, if `text`, the error text of a request,
    shows that. Returns "" if `text` shows another cause."""
    low = text.lower()
    return next((why for sign, why in _NO_ENGINE.items() if re.search(sign, low)), "")


def no_engine(text: str, host: str = "") -> MissingError:
    """Returns the error to raise if no container engine has ever answered this process. `text` is the error
    text. `host` is the value of `DOCKER_HOST`; empty if the variable is not set."""
    message = f"no Docker engine answers: {engine_missing(text)}"
    if host:
        remedy = "start the engine there, or correct or unset DOCKER_HOST"
        return MissingError(message, where=f"DOCKER_HOST={host}", remedy=remedy)
    return MissingError(message, remedy="run `air setup`")


def refuse_encrypted(host: str, *, tls: bool) -> None:
    """Raises MissingError if the connection to the container engine would be encrypted, because boxes
    exchange bytes directly over the engine's socket.

    `host` is the value of `DOCKER_HOST`; `tls` says whether Docker's environment variables request TLS.
    """
    kind = "ssh" if host.startswith("ssh://") else "TLS" if tls or "https://" in host else ""
    if kind and not host.startswith("unix://"):
        raise MissingError(
            f"boxes cannot use an engine through {kind}",
            where=f"DOCKER_HOST={host}",
            remedy="run air on the engine's machine, or forward the engine's socket: "
            "`ssh -NL /tmp/docker.sock:/var/run/docker.sock HOST`, and set "
            "DOCKER_HOST=unix:///tmp/docker.sock",
        )


def lacks_python(text: str) -> str | None:
    """Checks whether `text`, the error text of a box that did not start, shows that the image has no usable
    Python. Returns the part of `text` that shows this, or None."""
    match = _NO_PYTHON.search(text)
    return match[0] if match else None


def start_error(status: int | None, text: str, image: str, *, doing: str = "") -> AirError:
    """Returns the error to raise for a failed request to a container engine that has answered this process
    before.

    `status` is the HTTP status, or None if there was no answer. `text` is the error text. If the request was
    the start of a box, `image` is the name of the box's image. Otherwise, `doing` describes the request for
    the error message, for example `listing boxes`.
    """
    kind, line = classify(status, text), " ".join(text.split())[:300]
    if kind == "missing-engine":
        return EngineAwayError(f"the Docker engine went away: {engine_missing(text)}")
    if kind == "missing-image":
        how = "run `air setup`"
        if image.startswith("air-harbor-") or not image.startswith("air-"):
            how = "run `air images build harbor:PATH` with the path of its task"
        return MissingError(f"image `{image}` is not built here", remedy=how)
    if kind == "missing-gpus":
        return MissingError(
            "the Docker engine cannot give GPUs to containers",
            remedy="install the NVIDIA Container Toolkit and restart the Docker engine",
        )
    if "cgroup controller" in text:
        line += (
            " — let the Docker engine's user have the controllers cpu, memory and pids of cgroup v2"
        )
    error = TransientStartError if kind == "transient" else BoxStartError
    failure = f"a box of image `{image}` did not start" if image else f"Docker failed, {doing}"
    return error(f"{failure}: {line}")
