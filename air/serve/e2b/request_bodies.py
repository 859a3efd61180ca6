"""Pydantic models of the JSON request bodies of the control plane, E2B's API that creates and manages
sandboxes. Unknown fields are refused, because air would ignore them."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request

from air.config import first_problem
from air.serve.e2b.errors import ApiError
from air.serve.e2b.sandbox import Sandbox, SandboxSettings

LONGEST = 86_400
"""The longest timeout of a sandbox, in seconds, that a client may set. E2B has the same limit."""
MOST_BYTES = 16 << 20
"""The maximum size in bytes of a request's JSON body. In a body that is a stream of messages, it is the
maximum size of each message."""
T = TypeVar("T", bound=BaseModel)
_CLOSED = "0.0.0.0/0"


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class AutoResume(_Body):
    enabled: bool = False


class Network(_Body):
    allowPublicTraffic: bool = True
    allowOut: list[str] = []
    denyOut: list[str] = []
    maskRequestHost: str = ""
    egressProxy: Any = None
    rules: dict[str, Any] = {}

    def refuse_unserved(self) -> None:
        """Raises ApiError if the client sets one of the network settings `allowOut`, `egressProxy` or
        `rules`. air cannot apply them, because a box (the sandbox's container) has no network of its own."""
        named = {"allowOut": self.allowOut, "egressProxy": self.egressProxy, "rules": self.rules}
        for name, value in named.items():
            if value:
                raise unserved(f"network.{name}")


class NewSandbox(_Body):
    """The body of the requests `POST /sandboxes` and `POST /v2/sandboxes`, which create a sandbox."""

    templateID: str
    timeout: int = Field(300, ge=0)
    autoPause: bool = False
    autoPauseMemory: bool = True
    autoResume: AutoResume = AutoResume()
    secure: bool = True
    allow_internet_access: bool | None = None
    network: Network | None = None
    metadata: dict[str, str] = {}
    envVars: dict[str, str] = {}
    mcp: Any = None
    iam: dict[str, Any] | None = None
    volumeMounts: list[Any] | None = None

    def settings(self, template: str) -> SandboxSettings:
        """Converts this body to the settings of the new sandbox. `template` is the name of the sandbox's
        template. Raises ApiError if the client sets a field that air does not support."""
        network = self.network or Network()
        network.refuse_unserved()
        for name, value in (
            ("iam", (self.iam or {}).get("tokens")),
            ("volumeMounts", self.volumeMounts),
            ("mcp", self.mcp),
        ):
            if value:
                raise unserved(name)
        if self.autoResume.enabled and not self.autoPauseMemory:
            raise ApiError(
                400, "autoResume needs autoPauseMemory: files alone are not resumed by traffic"
            )
        return SandboxSettings(
            template=template,
            metadata=self.metadata,
            env=self.envVars,
            pause_at_end=self.autoPause,
            keep_processes=self.autoPauseMemory,
            resume_on_traffic=self.autoResume.enabled,
            public=network.allowPublicTraffic,
            host_header=network.maskRequestHost,
            internet=self.allow_internet_access,
        )


class Timeout(_Body):
    timeout: int = Field(ge=0)


class Refresh(_Body):
    duration: int = Field(15, ge=0)


class Connect(_Body):
    timeout: int = Field(300, ge=0)
    memory: bool = True
    autoPause: bool | None = None

    def refuse_unserved(self, sandbox: Sandbox) -> None:
        """Raises ApiError if the client wants a new start of the sandbox without its processes, or another
        end of it than it chose at the creation."""
        if not self.memory:
            raise unserved("memory: false")
        if self.autoPause not in (None, sandbox.settings.pause_at_end):
            raise unserved(f"autoPause: {str(self.autoPause).lower()}")


class Pause(_Body):
    memory: bool = True
    requireHealthyGuest: bool = False

    def refuse_unserved(self) -> None:
        """Raises ApiError if the client wants the pause to fail for a guest that is not healthy."""
        if self.requireHealthyGuest:
            raise unserved("requireHealthyGuest: true")


class NewSnapshot(_Body):
    name: str = ""
    memory: bool | None = None

    def refuse_unserved(self) -> None:
        """Raises ApiError if the client asks for a snapshot with processes. Without the field, E2B would keep
        them, too, but clients that do not name them rarely need them (`docs/serve.md`)."""
        if self.memory:
            raise unserved("memory: true")


class Fork(_Body):
    timeout: int = Field(300, ge=0)
    count: int = Field(1, ge=1, le=100)


async def body_of(request: Request, kind: type[T]) -> T:
    """Reads a request's JSON body, and returns it as an object of the class `kind`. Raises ApiError if the
    body is invalid (the message names the wrong field) or too large."""
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > MOST_BYTES:
            raise ApiError(413, f"the body is larger than {MOST_BYTES} bytes")
    try:
        return kind.model_validate_json(bytes(data) or b"{}")
    except ValidationError as error:
        bad = first_problem(error, bytes(data), quote=False)
        raise (unserved(bad.name) if bad.unknown else ApiError(400, bad.message)) from None


def checked_timeout(seconds: int) -> int:
    """Returns `seconds`, a sandbox's timeout, unchanged. Raises ApiError if it is larger than `LONGEST`."""
    if seconds > LONGEST:
        raise ApiError(400, f"Timeout cannot be greater than {LONGEST // 3600} hours")
    return seconds


def unserved(what: str) -> ApiError:
    """Returns the error (status 400) that refuses a request because air does not support `what`, a field of
    the request."""
    return ApiError(400, f"`{what}` is not served by air: leave it out")
