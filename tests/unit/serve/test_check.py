"""What `air doctor URL` says about an answer of `/health`."""

from __future__ import annotations

import json

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from air.sandbox.ops.doctor import Finding
from air.serve.http.server_check import examine
from tests.tools_server import running

FULL = {
    "status": "ok",
    "version": "1.2",
    "image": "air-code",
    "boxes": {"live": 1, "lent": 1, "max": 2, "queued": 0},
    "sandboxfusion": {"languages": ["python"], "jupyter": True},
}
FOREIGN = "answers, and is no server of air's"


async def first(content: str) -> Finding:
    """The first finding about a server with this answer; it runs no programs."""

    async def health(_: Request) -> Response:
        return Response(content, media_type="application/json")

    async with running(Starlette(routes=[Route("/health", health)])) as url:
        findings = [finding async for finding in examine(url, "")]
        assert findings[-1].check == "program"
        return findings[0]


async def test_what_a_server_of_air_says_is_known() -> None:
    finding = await first(json.dumps(FULL))
    assert (finding.state, finding.seen) == ("ok", "air 1.2, image air-code")
    finding = await first('{"status": "ok"}')
    assert (finding.state, finding.seen) == ("ok", "answers, and tells more only with its token")


@pytest.mark.parametrize(
    "content",
    [
        *('{"status": "failing"}', '{"status": "healthy"}', '{"status": {}}', "{}", "[]", "null"),
        *("", "OK", '["status"]', '"status"'),
        json.dumps(FULL | {"status": "failing"}),
        json.dumps(FULL | {"boxes": {}}),
        json.dumps(FULL | {"boxes": {"lent": "1", "max": None, "queued": "0"}}),
        json.dumps(FULL | {"sandboxfusion": {"languages": 3}}),
        json.dumps({key: value for key, value in FULL.items() if key != "version"}),
    ],
)
async def test_any_other_answer_is_none_of_airs(content: str) -> None:
    assert (await first(content)).seen == FOREIGN
