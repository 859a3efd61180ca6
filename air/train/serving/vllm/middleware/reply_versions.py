"""ASGI middleware for vLLM's server, which records the version of the weights that sampled each reply.

vLLM does not report this version. The time at which the client has received a reply does not tell it either:
on a busy machine, a reply of the old weights can reach the client after the new weights are in use. So the
version is recorded in vLLM's process, when the reply leaves it.

The request `POST /resume?version=N` says that all later replies are sampled by version N. The request comes
after a pause in which all running requests have ended. The first version is in the environment variable
`AIR_VLLM_VERSION`. The records are appended to the file that `AIR_VLLM_REPLIES` names: one line per reply,
with the digest of the reply and the version.

vLLM's interpreter imports this file as the module `reply_versions`, so it uses only the standard library.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

VERSION_ENV = "AIR_VLLM_VERSION"
REPLIES_ENV = "AIR_VLLM_REPLIES"
CLASS = "reply_versions.ReplyVersions"
"""The name of the class below for vLLM's option `--middleware`."""
_GENERATE, _RESUME = "/inference/v1/generate", "/resume"

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


def digest(token_ids: Sequence[int], logprobs: Sequence[float]) -> str:
    """Returns a text that identifies a reply, computed from the ids of its tokens and their
    log-probabilities."""
    text = json.dumps([list(token_ids), [float(one) for one in logprobs]])
    return hashlib.sha256(text.encode()).hexdigest()


class ReplyVersions:
    """The middleware: an ASGI application around vLLM's own application `app`."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._version = int(os.environ[VERSION_ENV])
        self._file = Path(os.environ[REPLIES_ENV])

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Handles one request (or another event of the server), as ASGI defines it."""
        path = scope.get("path")
        if path == _RESUME:
            query = parse_qs(scope["query_string"].decode())
            self._version = int(query.get("version", [self._version])[0])
        await self._app(scope, receive, self._recording(send) if path == _GENERATE else send)

    def _recording(self, send: Send) -> Send:
        """Returns a function that sends a response as `send` does. It records the reply before it sends the
        last part. A response that is an error has no reply."""
        status, body = 0, bytearray()

        async def send_part(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body" and status == 200:
                body.extend(message.get("body", b""))
                if not message.get("more_body"):
                    self._record(bytes(body))
            await send(message)

        return send_part

    def _record(self, body: bytes) -> None:
        """Appends the records of a response's replies to the file. If that fails, the client gets its reply
        all the same; the reply's version is then unknown."""
        try:
            with self._file.open("a", encoding="ascii") as file:
                for choice in json.loads(body)["choices"]:
                    entries = (choice.get("logprobs") or {}).get("content") or []
                    logprobs = [entry["logprob"] for entry in entries]
                    file.write(f"{digest(choice['token_ids'] or [], logprobs)} {self._version}\n")
        except (OSError, ValueError, KeyError, TypeError) as error:
            print(f"air: the version of a reply was not recorded: {error!r}", file=sys.stderr)
