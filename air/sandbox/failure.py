"""Which of three things a failure of the engine is: the user's to mend, worth another try, or final.

`classify` is pure: it looks at the HTTP status and the text of an error, nothing else. It is about
the engine only. Whether a *command* failed is never guessed from text: a command's end arrives as
an answer of the guest (an `ExecResult`), and a stream that ends without one is a dead box
(`BoxDiedError`).
"""

from __future__ import annotations

from typing import Literal

from air.errors import AirError, BoxStartError, MissingError

Kind = Literal["missing-engine", "missing-image", "transient", "final"]

_NO_ENGINE = (
    ("permission denied", "permission denied on the engine's socket"),
    ("permissionerror", "permission denied on the engine's socket"),
    ("no such file or directory", "its socket is not there"),
    ("filenotfounderror", "its socket is not there"),
    ("connection refused", "connection refused"),
    ("connectionrefusederror", "connection refused"),
    ("name or service not known", "its host is not known"),
)
_FINAL = (
    "no space left",
    "executable file not found",
    "exec format error",
    "minimum memory limit",
    "invalid",
    "unknown runtime",
    "not supported",
    "range of cpus",
    "cannot be empty",
)


class TransientStartError(BoxStartError):
    """A start that failed for a reason that may pass: worth another try."""


class EngineAwayError(TransientStartError):
    """The engine does not answer, though it did before: it is being restarted, perhaps."""


def classify(status: int | None, text: str) -> Kind:
    """Tells what a failed request to the engine was.

    Args:
        status: the HTTP status of the engine's answer; None where no answer came.
        text: the error's text.
    """
    low = text.lower()
    if status is None:
        return "missing-engine" if engine_missing(text) else "transient"
    if status == 404 and "no such image" in low:
        return "missing-image"
    if any(sign in low for sign in _FINAL) or status in (400, 401, 403):
        return "final"
    return "transient"


def engine_missing(text: str) -> str:
    """Why no engine can be asked, as half a line; empty where the text does not say so."""
    low = text.lower()
    return next((why for sign, why in _NO_ENGINE if sign in low), "")


def no_engine(text: str) -> MissingError:
    """The error that tells a user why there is no engine at all; `text` is the failure to reach it."""
    return MissingError(
        f"no Docker engine answers: {engine_missing(text)}", remedy="run `air setup`"
    )


def start_error(status: int | None, text: str, image: str) -> AirError:
    """The error that tells a user, or a pool, why a box of `image` did not start.

    It is about an engine that has answered before; for one that never did there is `no_engine`.
    """
    kind, line = classify(status, text), " ".join(text.split())[:300]
    if kind == "missing-engine":
        return EngineAwayError(f"the Docker engine went away: {engine_missing(text)}")
    if kind == "missing-image":
        return MissingError(f"image `{image}` is not built here", remedy="run `air setup`")
    error = TransientStartError if kind == "transient" else BoxStartError
    return error(f"a box of image `{image}` did not start: {line}")
