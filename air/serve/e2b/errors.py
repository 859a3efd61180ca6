"""The errors that clients of E2B get, in the two forms of E2B's protocol.

The control plane, `/files` and the code interpreter answer `{code, message}` with that HTTP status. The
remote calls of envd (E2B's program in a sandbox) answer with the codes of the Connect protocol.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from starlette.responses import JSONResponse, Response

from air.errors import AirError, BoxDiedError, BoxEndedError

STATUS = {
    "canceled": 499,
    "unknown": 500,
    "invalid_argument": 400,
    "deadline_exceeded": 504,
    "not_found": 404,
    "already_exists": 409,
    "permission_denied": 403,
    "resource_exhausted": 429,
    "failed_precondition": 400,
    "aborted": 409,
    "unimplemented": 501,
    "internal": 500,
    "unavailable": 503,
    "unauthenticated": 401,
}
"""The HTTP status of each error code of the Connect protocol."""


class ApiError(AirError):
    """A request is refused with this HTTP status and message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    def response(self) -> Response:
        """Returns the answer that clients of E2B understand."""
        body = {"code": self.status, "message": str(self)}
        headers = {"Retry-After": "1"} if self.status in (429, 503) else {}
        return JSONResponse(body, status_code=self.status, headers=headers)


class RpcError(AirError):
    """A remote call is refused with this code of the Connect protocol and message."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def body(self) -> dict[str, str]:
        """The error in the form of the Connect protocol."""
        return {"code": self.code, "message": str(self)}

    def response(self) -> Response:
        """Returns the answer to a call that expects one answer and not a stream."""
        return JSONResponse(self.body, status_code=STATUS[self.code])


class SandboxGone(AirError):
    """The sandbox of a request does not exist, or its box has ended."""

    def __init__(self, sandbox_id: str) -> None:
        super().__init__("The sandbox was not found")
        self.sandbox_id = sandbox_id

    def response(self) -> Response:
        """Returns the answer of E2B's proxy for a sandbox that is gone."""
        body = {"sandboxId": self.sandbox_id, "message": str(self), "code": 502}
        return JSONResponse(body, status_code=502)


@contextmanager
def box_of(sandbox_id: str) -> Iterator[None]:
    """Context manager: raises SandboxGone if the sandbox's box ends during the block."""
    try:
        yield
    except (BoxDiedError, BoxEndedError) as error:
        raise SandboxGone(sandbox_id) from error
