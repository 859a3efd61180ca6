"""Refuses requests that web pages of other sites send to an inference server on a loopback address, through a
browser on this machine."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from air import origin_check


class RefusingOtherSites:
    """ASGI middleware for a server without authentication that listens on a loopback address. Answers a
    request with status 403 if the header `Origin` names a web page of another site, or if the header `Host`
    names another machine."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            problem = origin_check.foreign_host(headers.getlist("host"))
            problem = problem or origin_check.foreign_origin(headers.get("origin"))
            if problem:
                await PlainTextResponse(problem, 403)(scope, receive, send)
                return
        await self._app(scope, receive, send)
