"""Puts prime-rl's `/update_weights` in front of a stock vLLM server, whose own has another meaning.

All else goes through: prime-rl's orchestrator also asks for `/health`, `/v1/models`, `/metrics`, `/pause` and
`/resume`, which vLLM has in its development mode. One difference: prime-rl's server keeps replies
half-done over a change of weights, and they go on with the new ones; here `/pause` waits for them to end
and empties the cache, so that every reply is of one version.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import httpx

PAUSE = "/pause?mode=wait&clear_cache=true"


class AdminProxy:
    """An address for prime-rl in front of `vllm`, a base URL; use through `with`. `port` 0: any free port.

    Attributes:
        loaded: the folders whose weights vLLM was told to load, in order.
    """

    def __init__(self, vllm: str, port: int = 0) -> None:
        self.loaded: list[str] = []
        self._http = httpx.Client(base_url=vllm, timeout=300, trust_env=False)
        self._server = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> AdminProxy:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._http.close()

    def ask(self, method: str, path: str, body: bytes, media: str) -> httpx.Response:
        """What vLLM answers to a request of prime-rl's."""
        name = urlsplit(path).path
        if name == "/update_weights":
            folder = json.loads(body)["weight_dir"]
            answer = self._http.post(
                "/collective_rpc",
                json={"method": "reload_weights", "kwargs": {"weights_path": folder}},
            )
            if answer.is_success:
                self.loaded.append(folder)
            return answer
        address = PAUSE if name == "/pause" else path
        return self._http.request(method, address, content=body, headers={"Content-Type": media})


def _handler(proxy: AdminProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._ask(b"")

        def do_POST(self) -> None:
            self._ask(self.rfile.read(int(self.headers.get("Content-Length", 0))))

        def _ask(self, body: bytes) -> None:
            media = self.headers.get("Content-Type", "application/json")
            answer = proxy.ask(self.command, self.path, body, media)
            self.send_response(answer.status_code)
            self.send_header("Content-Type", answer.headers.get("content-type", "text/plain"))
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler
