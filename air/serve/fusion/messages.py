"""The requests and answers of SandboxFusion's protocol that run code. Unknown fields are ignored."""

from __future__ import annotations

import base64
import binascii
import posixpath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, FailFast, Field

COMPILE, RUN, TOTAL = 10.0, 10.0, 45.0
_SKIPPED = "IGNORE_THIS_FILE"
"""A file whose name contains this text is not written, as in the original."""


def _inside(path: str) -> str:
    """Returns a path of the workspace in its shortest form. Raises ValueError if it leads outside."""
    short = posixpath.normpath(path)
    outside = short.startswith(("/", "../")) or short in (".", "..")
    if outside or "\0" in path or path.endswith("/"):
        raise ValueError(f"{path!r} is not the path of a file inside the workspace")
    return short


def _decoded(files: dict[str, str | None]) -> dict[str, str | None]:
    for path, content in files.items():
        _inside(path)
        if content is not None:
            try:
                base64.b64decode(content)
            except (binascii.Error, ValueError) as error:
                raise ValueError(f"{path!r} is not base64: {error}") from None
    return files


def first_fault(*kinds: type) -> BeforeValidator:
    """Returns a check that ends at the first item of a list or value of a dict that has none of these types.

    pydantic itself collects every fault, and one request can have millions: they would take gigabytes here.
    """

    def checked(value: Any) -> Any:
        items = value.items() if isinstance(value, dict) else ()
        for place, each in enumerate(value) if isinstance(value, list) else items:
            if not isinstance(each, kinds):
                raise ValueError(f"{place!r} has a value of a wrong type")
        return value

    return BeforeValidator(checked)


Files = Annotated[dict[str, str | None], AfterValidator(_decoded), first_fault(str, type(None))]
Texts = Annotated[list[str], first_fault(str)]


class Message(BaseModel):
    """The base class of requests and answers."""

    model_config = ConfigDict(use_attribute_docstrings=True, allow_inf_nan=False)


class FilesRequest(Message):
    """The fields that both kinds of request have."""

    memory_limit_MB: int = -1
    """Memory of the program in MiB; -1: the server's default."""
    files: Files = Field(default_factory=dict)
    """Files to write first: base64 by path inside the workspace. A file that is null is skipped."""
    fetch_files: Texts = Field(default_factory=list)
    """Paths of files to return afterwards. Those that do not exist are left out. Together they may be as
    large as the workspace."""

    def contents(self) -> dict[str, bytes]:
        """Returns the files to write."""
        return {
            _inside(path): base64.b64decode(content)
            for path, content in self.files.items()
            if content is not None and _SKIPPED not in path
        }


class RunCodeRequest(FilesRequest):
    """A program to compile, if its language needs that, and to run."""

    code: str
    """The program."""
    language: str
    """The language of the program, e.g. `python`."""
    compile_timeout: float = Field(COMPILE, ge=0)
    """Seconds that the compiler may take."""
    run_timeout: float = Field(RUN, ge=0)
    """Seconds that the program may take."""
    stdin: str | None = None
    """The program's standard input; null: empty."""


class RunJupyterRequest(FilesRequest):
    """Cells to run, one after another, in a new Jupyter kernel. Later cells run even if one fails."""

    cells: Texts
    """The code of the cells."""
    cell_timeout: float = Field(0, ge=0)
    """Seconds that one cell may take; 0: as long as `total_timeout` allows."""
    total_timeout: float = Field(TOTAL, ge=0)
    """Seconds that all cells may take, without the kernel's start."""
    kernel: Literal["python3"] = "python3"
    """The kernel."""


class CommandResult(Message):
    """The result of one command."""

    status: Literal["Finished", "Error", "TimeLimitExceeded"]
    """`Error`: the server failed, and `stderr` says how."""
    execution_time: float | None = None
    """Seconds that the command took; null after an error."""
    return_code: int | None = None
    """Exit status: 128 + N if signal N ended the command; null if it did not end by itself."""
    stdout: str | None = None
    """Standard output, up to the time limit if that was exceeded."""
    stderr: str | None = None
    """Standard error."""


class Answer(Message):
    """The fields that both kinds of answer have."""

    status: Literal["Success", "Failed", "SandboxError"]
    """`Failed`: the program failed or exceeded its time. `SandboxError`: the server failed."""
    message: str = ""
    """The reason for a `SandboxError`."""
    executor_pod_name: str | None = None
    """Always null; the original names its Kubernetes pod here."""
    files: Annotated[dict[str, str], first_fault(str)] = Field(default_factory=dict)
    """The fetched files: base64 by the path in the request."""


class RunCodeAnswer(Answer):
    """The result of a program."""

    compile_result: CommandResult | None = None
    """The compiler's result; null if the language needs no compiler."""
    run_result: CommandResult | None = None
    """The program's result; null if it was not compiled."""


class Cell(Message):
    """The outputs of one cell: text, displayed results, and exceptions."""

    stdout: str
    stderr: str
    display: Annotated[list[dict[str, Any]], FailFast()]
    """Results and pictures: data by MIME type."""
    error: Annotated[list[dict[str, Any]], FailFast()]
    """Exceptions: `ename`, `evalue`, `traceback`."""


class RunJupyterAnswer(Answer):
    """The results of the cells that ran to their end."""

    driver: CommandResult | None = None
    """The result of the program that talks to the kernel."""
    cells: Annotated[list[Cell], FailFast()] = Field(default_factory=list)


def status_of(
    *results: CommandResult | None,
) -> tuple[Literal["Success", "Failed", "SandboxError"], str]:
    """Returns the status of an answer, and its message, by SandboxFusion's rules."""
    known = [result for result in results if result is not None]
    for result in known:
        if result.status == "Error":
            return "SandboxError", result.stderr or "the server failed"
    if any(result.status == "TimeLimitExceeded" or result.return_code for result in known):
        return "Failed", ""
    return "Success", ""
