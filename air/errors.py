"""The exceptions that air raises on purpose.

AirError
├── UsageError               the user's input is wrong; the exit code is 2
│   ├── ConfigError          a key of a run file, or a flag, is wrong
│   ├── MissingError         a task, model, file, image or program does not exist
│   └── UserCodeError        code that the user added failed in an episode; the run stops
│       ├── RewardTermError  a reward term or an answer checker failed
│       └── HangingToolError too many calls of a tool do not end
├── InfrastructureError      air or the machine failed; the agent did not cause it
│   ├── BoxStartError        a box could not start
│   ├── BoxDiedError         a box ended while it was in use
│   ├── StagingError         a box could not be prepared for a task
│   ├── GradingError         the grader failed, not the artefact
│   │   └── BrokenTaskError  a task's grader or tests fail whatever is graded; the run stops
│   └── InferenceError       the model server did not answer
├── BoxEndedError            a box ended, and no cause outside of its commands is known
├── BoxFileError             a file in a box is absent, of the wrong kind, or in a forbidden place
├── BoxCommandError          a running box cannot do what was asked with a command or a snapshot
└── ArtefactError            the agent's artefact is missing or malformed; shown to the agent

A failed command is not an error: its exit code is data (`ExecResult`).

A box is a sandbox for the commands of an agent or grader, usually a container. An artefact is the set of
an agent's files that is graded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class AirError(Exception):
    """The base class of all errors that air raises on purpose. The error's text is one line for the user."""


class UsageError(AirError):
    """The user's input is wrong. The error's text names the place, the problem and the remedy. `where` is the
    file, flag or key at fault, and `remedy` says what the user can do; both may be empty."""

    def __init__(self, message: str, *, where: str = "", remedy: str = "") -> None:
        parts = [f"{where}: {message}" if where else message]
        if remedy:
            parts.append(remedy)
        super().__init__(" ".join(" — ".join(parts).split()))


class ConfigError(UsageError):
    """A key of a run file, or a flag, is unknown or has a value that cannot be used."""


class MissingError(UsageError):
    """A task, model, file, image or program that is needed does not exist on this machine."""


class UserCodeError(UsageError):
    """Code that the user added, such as a reward function, failed in an episode, and would also fail in later
    episodes. The run stops: otherwise, every episode that uses the code would be left out of training."""


class RewardTermError(UserCodeError):
    """A reward term (a function for one part of the reward) or an answer checker that the user added failed:
    it raised an exception, or returned something that cannot be a reward, such as NaN."""


class HangingToolError(UserCodeError):
    """So many calls of a tool hang that no further call can begin: they have exceeded their time limit but
    still run, or have occupied all threads for too long."""


class InfrastructureError(AirError):
    """air or the machine failed; the agent did not cause the failure. Base class of such errors."""


class BoxStartError(InfrastructureError):
    """A box (a sandbox for the commands of an agent or grader, usually a container) could not be created,
    started or made ready."""


class BoxDiedError(InfrastructureError):
    """A box (a sandbox for the commands of an agent or grader, usually a container) ended while it was in
    use, or its guest (air's program inside the box) or the container engine ended."""


class StagingError(InfrastructureError):
    """A box (a sandbox for commands, usually a container) could not be prepared for a task: a command or
    health check of the task failed in the box, the task's files do not fit into the box, or the task's MCP
    servers (Model Context Protocol) offer no tool. If an agent has worked in the box before, the agent may
    have caused the failure."""


class GradingError(InfrastructureError):
    """The grader failed to grade an artefact (the agent's graded files). If the artefact did not cause the
    failure, the episode gets no score and no reward, and is not used for training."""


class BrokenTaskError(GradingError):
    """A task is broken, because its grader fails on everything: on an agent's artefact (its graded files),
    and also on an empty artefact. If the task is a Harbor task (a folder in Harbor's format): its tests yield
    no valid reward for an agent's work, none if nothing was done, and none for the reference solution.

    The run stops: otherwise, an agent could keep its bad episodes out of training by making the grader fail.
    """


class InferenceError(InfrastructureError):
    """The inference server, which generates the model's replies, could not answer a request."""


class BoxEndedError(AirError):
    """A box (a sandbox for commands, usually a container) ended while it was in use, and no cause outside the
    box is known. So the commands that ran in the box count as the cause, and not the machine."""


class BoxFileError(AirError):
    """A file in a box (a sandbox for commands, usually a container) is absent, of the wrong kind (such as a
    folder), too large, or outside the folder in which it must be."""


class BoxCommandError(AirError):
    """A running box (a sandbox for commands, usually a container) cannot do what was asked with a command or
    a snapshot. For example, the command has already ended or has no standard input or terminal, the box is
    frozen, or the workspace could not be copied."""


class ArtefactError(AirError):
    """The agent's artefact (its graded files) is missing or malformed. The agent sees the error's text.

    `fault` says how the grader failed on the artefact. It is empty if the grader worked and rejected the
    artefact. The agent never sees `fault`.
    """

    def __init__(self, message: str, *, fault: str = "") -> None:
        # An agent's code can choose parts of the text. A lone surrogate (half a character) in it could not be
        # sent to the model, so the episode would break.
        super().__init__(message.encode("utf-8", "replace").decode())
        self.fault = fault


@contextmanager
def boundary(kind: type[Exception], doing: str, *foreign: type[Exception]) -> Iterator[None]:
    """Context manager that translates exceptions: if the `with` block raises an exception of a type in
    `foreign`, raises an exception of the type `kind` instead. Its text is `doing` (a description of the
    block), a colon, and the text of the old exception. Exceptions of all other types pass unchanged."""
    try:
        yield
    except foreign as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise kind(f"{doing}: {text}") from error
