"""A server with SandboxFusion's `/run_code` that gives prepared answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

RAN = {
    "status": "Finished",
    "execution_time": 0.5,
    "return_code": 0,
    "stdout": "42\n",
    "stderr": "",
}
DONE = {"status": "Success", "message": "", "run_result": RAN, "files": {"a": "YQ=="}}


@contextmanager
def answering(*answers: tuple[int, Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server that gives these answers in turn; yields its URL and the requests that arrive."""
    requests: list[dict[str, Any]] = []
    rest = list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            size = int(self.headers["content-length"])
            requests.append(
                json.loads(self.rfile.read(size))
                | {"path": self.path, "authorization": self.headers["authorization"]}
            )
            status, body = rest.pop(0)
            text = body if isinstance(body, str) else json.dumps(body)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            """Writes nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}", requests
        finally:
            server.shutdown()
            thread.join()
