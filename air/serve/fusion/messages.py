"""The request and response bodies of SandboxFusion's endpoints that run code. Unknown fields are ignored."""

from __future__ import annotations

import base64
import binascii
import posixpath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, FailFast, Field

COMPILE, RUN, TOTAL = 10.0, 10.0, 45.0
_SKIPPED = "IGNORE_THIS_FILE"
"""If the path of a file in a request contains this string, the file is not written. SandboxFusion has the
same rule."""


def _normal_path(path: str) -> str:
    """Returns `path`, the relative path of a file in the workspace, in normal form (without `..` and `//`).
    Raises ValueError if the path leads out of the workspace or is not the path of a file."""
    short = posixpath.normpath(path)
    outside = short.startswith(("/", "../")) or short in (".", "..")
    if outside or "\0" in path or path.endswith("/"):
        raise ValueError(f"{path!r} is not the path of a file inside the workspace")
    return short


def _decoded(files: dict[str, str | None]) -> dict[str, str | None]:
    for path, content in files.items():
        _normal_path(path)
        if content is not None:
            try:
                base64.b64decode(content)
            except (binascii.Error, ValueError) as error:
                raise ValueError(f"{path!r} is not base64: {error}") from None
    return files


def first_fault(*kinds: type) -> BeforeValidator:
    """Returns a pydantic validator for a list or dict. The validator raises ValueError at the first item (or
    value) that has none of the types `kinds`.

    Pydantic alone would collect the errors of all items. A request with millions of wrong items would then
    need gigabytes of memory.
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
    """Base class of the request and response bodies of SandboxFusion's endpoints."""

    model_config = ConfigDict(use_attribute_docstrings=True, allow_inf_nan=False)


class FilesRequest(Message):
    """The fields that requests to `/run_code` and `/run_jupyter` have in common: the memory limit, and the
    files to write and to return."""

    memory_limit_MB: int = -1
    """The memory limit, in MiB, of the code that the request runs. 0 or less: the server's own limit, which
    is also the maximum. Values from 1 to 31 count as 32."""
    files: Files = Field(default_factory=dict)
    """Files that are written before the request's code runs: maps a path relative to the workspace to the
    content as base64. A file whose content is null is not written."""
    fetch_files: Texts = Field(default_factory=list)
    """Paths of files whose contents are returned after the request's code has ended. Relative paths are
    relative to the workspace. Files that do not exist are left out of the response. The total size of the
    files must not exceed the size limit of the workspace."""

    def contents(self) -> dict[str, bytes]:
        """Returns the files to write, as a dict that maps the path to the decoded content."""
        return {
            _normal_path(path): base64.b64decode(content)
            for path, content in self.files.items()
            if content is not None and _SKIPPED not in path
        }


class RunCodeRequest(FilesRequest):
    """The body of a request to `/run_code`: a program that is compiled (if its language needs that) and
    run."""

    code: str
    """The program's source code."""
    language: str
    """The program's language, such as `python`."""
    compile_timeout: float = Field(COMPILE, ge=0)
    """Seconds that the compiler may take."""
    run_timeout: float = Field(RUN, ge=0)
    """Seconds that the program may take."""
    stdin: str | None = None
    """The text that the program gets on standard input. Null: standard input is empty."""


class RunJupyterRequest(FilesRequest):
    """The body of a request to `/run_jupyter`: notebook cells that run one after another in a new Jupyter
    kernel. If a cell raises an exception, the next ones still run."""

    cells: Texts
    """The source code of each cell."""
    cell_timeout: float = Field(0, ge=0)
    """Seconds that each cell may take. 0: only `total_timeout` limits it."""
    total_timeout: float = Field(TOTAL, ge=0)
    """Seconds that all cells together may take, not counting the kernel's start."""
    kernel: Literal["python3"] = "python3"
    """The name of the kernel."""


class CommandResult(Message):
    """The result of one command in a box (container): a compiler, the client's program, or air's program that
    runs notebook cells."""

    status: Literal["Finished", "Error", "TimeLimitExceeded"]
    """`Finished`: the command ended before its time limit. `TimeLimitExceeded`: it was killed at the limit.
    `Error`: the server failed, and `stderr` has the reason."""
    execution_time: float | None = None
    """Seconds that the command took. Null if `status` is `Error`."""
    return_code: int | None = None
    """The exit status, or 128 + N if the signal N ended the command. Null if the command was killed at its
    time limit or the server failed."""
    stdout: str | None = None
    """The standard output; if the command was killed at its time limit, the output until then. Null if the
    server failed."""
    stderr: str | None = None
    """The standard error of the command or, if the server failed, the reason."""


class Answer(Message):
    """The fields that the responses of `/run_code` and `/run_jupyter` have in common."""

    status: Literal["Success", "Failed", "SandboxError"]
    """`Success`: the program exited with status 0, or all notebook cells ran (even if some raised
    exceptions). `Failed`: the compiler or the program failed or exceeded its time limit, or not all notebook
    cells ran. `SandboxError`: the server failed."""
    message: str = ""
    """The reason if `status` is `SandboxError`; otherwise empty."""
    executor_pod_name: str | None = None
    """Always null. SandboxFusion itself returns the name of its Kubernetes pod."""
    files: Annotated[dict[str, str], first_fault(str)] = Field(default_factory=dict)
    """The contents of the files that `fetch_files` in the request names: maps each path to the content as
    base64."""


class RunCodeAnswer(Answer):
    """The response of `/run_code`: the result of a program."""

    compile_result: CommandResult | None = None
    """The result of the compiler; null if the language needs none."""
    run_result: CommandResult | None = None
    """The result of the program; null if it did not run because the compilation failed."""


class Cell(Message):
    """The outputs of one notebook cell: text, displayed results, and exceptions."""

    stdout: str
    stderr: str
    display: Annotated[list[dict[str, Any]], FailFast()]
    """Displayed results and pictures. Each is a dict of data by MIME type."""
    error: Annotated[list[dict[str, Any]], FailFast()]
    """The cell's exceptions, each with `ename` (its class), `evalue` (its message) and `traceback`."""


class RunJupyterAnswer(Answer):
    """The response of `/run_jupyter`: the outputs of the notebook cells that ran. If a cell exceeded its time
    limit, it was interrupted, and its exceptions include a `TimeoutError`."""

    driver: CommandResult | None = None
    """The result of air's program that ran the notebook cells in the box (container)."""
    cells: Annotated[list[Cell], FailFast()] = Field(default_factory=list)


def status_of(
    *results: CommandResult | None,
) -> tuple[Literal["Success", "Failed", "SandboxError"], str]:
    """Returns the fields `status` and `message` of the response to a request that ran commands with these
    results (None: the command did not run). If a result has the status `Error`, they are `SandboxError` and
    the reason. Otherwise, `message` is empty, and `status` is `Failed` if a command exceeded its time limit
    or its exit status is not 0, else `Success`."""
    known = [result for result in results if result is not None]
    for result in known:
        if result.status == "Error":
            return "SandboxError", result.stderr or "the server failed"
    if any(result.status == "TimeLimitExceeded" or result.return_code for result in known):
        return "Failed", ""
    return "Success", ""
