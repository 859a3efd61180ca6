"""The exceptions that air raises on purpose.

AirError
├── UsageError               the user's input is wrong: one line, exit code 2
│   ├── ConfigError          a key of a run file or a flag
│   └── MissingError         a task, model, file, image or program that is not there
├── InfrastructureError      air or the machine failed: never a reward, never an observation
│   ├── BoxStartError        a box could not start
│   ├── BoxDiedError         a box ended while it was in use
│   ├── GradingError         the grader failed, not the artefact
│   └── InferenceError       the model server did not answer
├── BoxFileError             a path in a box is absent, of the wrong kind, or outside its root
└── ArtefactError            the agent's artefact is missing or malformed; shown to the agent

A failed command is not an error: its exit code is data (`ExecResult`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class AirError(Exception):
    """The base of all errors of air; its text is one line for the user."""


class UsageError(AirError):
    """The user's input is wrong. The text says where, what, and how to fix it.

    Args:
        message: what is wrong.
        where: the file, flag or key at fault.
        remedy: what to do about it.
    """

    def __init__(self, message: str, *, where: str = "", remedy: str = "") -> None:
        parts = [f"{where}: {message}" if where else message]
        if remedy:
            parts.append(remedy)
        super().__init__(" ".join(" — ".join(parts).split()))


class ConfigError(UsageError):
    """A key of a run file, or a flag, is unknown or has a value that cannot be used."""


class MissingError(UsageError):
    """A task, model, file, image or program that the user needs does not exist on this machine."""


class InfrastructureError(AirError):
    """A failure of air or the machine, not of the agent's work."""


class BoxStartError(InfrastructureError):
    """A box could not be created, started or made ready."""


class BoxDiedError(InfrastructureError):
    """A box ended while it was in use, or its guest (air's program in it) or the container engine did."""


class GradingError(InfrastructureError):
    """The grader itself failed: the episode gets no score and no reward, and is not trained on."""


class InferenceError(InfrastructureError):
    """The inference server could not answer."""


class BoxFileError(AirError):
    """A file in a box cannot be used: it is absent, of the wrong kind, too large, or outside its root."""


class ArtefactError(AirError):
    """The agent's artefact is missing or malformed; the text is shown to the agent."""


@contextmanager
def boundary(kind: type[Exception], doing: str, *foreign: type[Exception]) -> Iterator[None]:
    """Translates exceptions in the `with` block: raises `kind` for each of the types `foreign`.

    Args:
        kind: the type of the new error.
        doing: what the block does; the new text is this, a colon, and the original text.
        foreign: the types of exceptions to translate; others pass unchanged.
    """
    try:
        yield
    except foreign as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise kind(f"{doing}: {text}") from error
