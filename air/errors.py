"""Every error that air raises on purpose.

AirError
├── UsageError               the user's input is wrong: one line, exit code 2
│   ├── ConfigError          a key of a run file or a flag
│   └── MissingError         a task, model, file, image or program that is not there
├── InfrastructureError      we failed: never a reward, never an observation
│   ├── BoxStartError        a box could not be made ready
│   ├── BoxDiedError         a box went away while it was in use
│   ├── GradingError         an artefact could not be scored, through no fault of it
│   └── InferenceError       the policy could not be asked
├── BoxFileError             a path in a box: absent, of the wrong kind, or outside
└── ArtefactError            the agent's artefact is missing or malformed; told to the agent

A command that fails is no error: its exit code is data (`ExecResult`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class AirError(Exception):
    """The root of the tree; its text is one line, fit to be shown to a user."""


class UsageError(AirError):
    """What the user gave cannot be used. Says where, what, and how to mend it.

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
    """Something that was named does not exist here."""


class InfrastructureError(AirError):
    """A failure of ours, not of the agent's work."""


class BoxStartError(InfrastructureError):
    """A box could not be created, started or made ready."""


class BoxDiedError(InfrastructureError):
    """A box, its guest or its engine went away while the box was in use."""


class GradingError(InfrastructureError):
    """The grader itself failed: no score, no reward, the episode is masked."""


class InferenceError(InfrastructureError):
    """The inference server could not answer."""


class BoxFileError(AirError):
    """A path in a box is absent, of the wrong kind, too large, or leaves its root."""


class ArtefactError(AirError):
    """The artefact is missing or malformed; the text is shown to the agent."""


@contextmanager
def boundary(kind: type[Exception], doing: str, *foreign: type[Exception]) -> Iterator[None]:
    """Translates `foreign` exceptions raised inside into `kind`, as "doing: what happened"."""
    try:
        yield
    except foreign as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise kind(f"{doing}: {text}") from error
