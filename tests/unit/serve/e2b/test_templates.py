"""How E2B's templates are found among the images of the container engine. A small HTTP server stands in for
the engine."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import cast
from urllib.parse import unquote

import pytest

from air.sandbox.contract.box import BoxLimits, BoxSpec
from air.sandbox.pool.image_ids import DIGEST_SECONDS, Digests
from air.serve.e2b.errors import ApiError
from air.serve.e2b.templates import Templates


class Engine(ThreadingHTTPServer):
    """A container engine that only describes its images. `images` has their ids by their names, `requests`
    the name in each request for an image."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.images: dict[str, str] = {}
        self.requests: list[str] = []


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        engine = cast(Engine, self.server)
        path = unquote(self.path)
        status, body = 200, {"ApiVersion": "1.41"}
        if "/images/" in path:
            name = path.split("/images/")[1].removesuffix("/json")
            engine.requests.append(name)
            body = {"Id": engine.images.get(name, "")}
            if not body["Id"]:
                status, body = 404, {"message": f"No such image: {name}"}
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    with Engine() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{server.server_port}")
        yield server
        server.shutdown()


async def test_many_sandboxes_at_once_ask_the_engine_once(engine: Engine) -> None:
    engine.images = {"air-tools": "sha256:1"}
    digests = Digests()
    templates = Templates(BoxLimits(), digests)
    begun = time.monotonic()
    specs = await asyncio.gather(*(templates.spec("tools") for _ in range(50)))
    ids = {await digests.of(spec) for spec in specs}
    assert ids == {"sha256:1"}
    assert {spec.image for spec in specs} == {"air-tools"}
    # A loaded machine may need so long that the engine has to be asked again.
    most = 1 + int((time.monotonic() - begun) / DIGEST_SECONDS)
    assert engine.requests[:2] == ["tools", "air-tools"]
    assert len(engine.requests) <= 3 * most


async def test_a_changed_or_new_tag_is_noticed(engine: Engine) -> None:
    engine.images = {"air-tools": "sha256:1"}
    digests = Digests()
    templates = Templates(BoxLimits(), digests)
    assert await digests.of(await templates.spec("tools")) == "sha256:1"
    engine.images["air-tools"] = "sha256:2"
    await asyncio.sleep(1.1 * DIGEST_SECONDS)
    assert await digests.of(await templates.spec("tools")) == "sha256:2"
    engine.images["tools"] = "sha256:3"
    await asyncio.sleep(1.1 * DIGEST_SECONDS)
    assert await digests.of(await templates.spec("tools")) == "sha256:3"
    engine.images.clear()
    await asyncio.sleep(1.1 * DIGEST_SECONDS)
    with pytest.raises(ApiError, match="no image has that name"):
        await templates.spec("tools")


async def test_a_missing_template_is_looked_for_each_time(engine: Engine) -> None:
    templates = Templates(BoxLimits())
    with pytest.raises(ApiError, match="'tools' not found"):
        await templates.image("tools")
    engine.images = {"tools": "sha256:1"}
    assert await templates.image("tools") == "tools"
    for name in ("", " ", "-x"):
        with pytest.raises(ApiError, match="not found"):
            await templates.image(name)


async def test_the_id_from_the_pools_cache_is_as_old_as_its_request(engine: Engine) -> None:
    engine.images = {"tools": "sha256:2"}
    digests = Digests()
    digests.store("tools", "sha256:1", time.monotonic() - 1.1 * DIGEST_SECONDS)
    assert await digests.of(BoxSpec(image="tools")) == "sha256:2"
