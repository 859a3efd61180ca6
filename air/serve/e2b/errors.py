"""The errors that E2B's clients receive. E2B's interface has two forms of errors.

The control plane (the API that manages sandboxes), `/files` and the code interpreter respond with the JSON
object `{code, message}`, in which `code` is the HTTP status. The remote calls of envd (E2B's program in a
sandbox) respond with the error codes of the Connect protocol.
"""

from __future__ import annotations

from starlette.responses import JSONResponse, Response

from air.errors import AirError

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
"""Maps each error code of the Connect protocol (remote calls over HTTP) to its HTTP status."""


class ApiError(AirError):
    """Error: a request is refused. The response has the HTTP status `status` and the message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    def response(self) -> Response:
        """Returns the HTTP response with the JSON object `{code, message}`, the form of errors in E2B's
        API."""
        body = {"code": self.status, "message": str(self)}
        headers = {"Retry-After": "1"} if self.status in (429, 503) else {}
        return JSONResponse(body, status_code=self.status, headers=headers)


class RpcError(AirError):
    """Error: a remote call fails. `code` is an error code of the Connect protocol (remote calls over HTTP),
    such as `not_found`; it is a key of `STATUS`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def body(self) -> dict[str, str]:
        """The error in the form of the Connect protocol: the JSON object `{code, message}`."""
        return {"code": self.code, "message": str(self)}

    def response(self) -> Response:
        """Returns the HTTP response to a failed single call (a remote call that does not stream)."""
        return JSONResponse(self.body, status_code=STATUS[self.code])


class SandboxGone(AirError):
    """Error: the sandbox that a request is for does not exist or does not run, or its box (container) has
    ended."""

    def __init__(self, sandbox_id: str) -> None:
        super().__init__("The sandbox was not found")
        self.sandbox_id = sandbox_id

    def response(self) -> Response:
        """Returns the HTTP response that E2B's proxy would send for a sandbox that does not exist."""
        body = {"sandboxId": self.sandbox_id, "message": str(self), "code": 502}
        return JSONResponse(body, status_code=502)
