"""Parses HTTP requests to the model from a program that plays the agent in a box (a container), and builds
the requests that are forwarded to the model server."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

import h11

MOST_BYTES = 8_000_000
"""The maximum size of a request's body in bytes."""
_HEADER_BYTES = 64_000
_READ_BYTES = 1 << 16
_FORWARDED_HEADERS = {
    *(b"accept", b"authorization", b"content-type", b"host", b"user-agent", b"x-api-key"),
}
"""The names of the request headers that are forwarded to `verifiers`' model endpoint. All others are dropped,
because with some of them a program could tell `verifiers` which replies to train on."""


class RequestError(Exception):
    """Raised if the bytes are not a valid HTTP request, or the request is too large."""


@dataclass(frozen=True)
class HttpRequest:
    """One HTTP request with its whole body."""

    method: str
    path: str
    headers: tuple[tuple[bytes, bytes], ...]
    """The headers as pairs of name (in lower case) and value."""
    body: bytes

    def header(self, name: str) -> str:
        """Returns the value of the first header with the name `name`, which must be in lower case. Returns ""
        if there is none."""
        values = (value for key, value in self.headers if key == name.encode())
        return next(values, b"").decode("ascii", "replace")

    def anew(self, body: bytes, placeholder: str, secret: str) -> bytes:
        """Returns the bytes of the request to forward to the model endpoint: with the body `body`, and with
        those of this request's headers that `_FORWARDED_HEADERS` names.

        The text `placeholder` in the headers is replaced by `secret`, which authorises requests to the
        endpoint, unless `secret` is empty. The request asks the server to close the connection after its
        response.
        """
        line = f"{self.method} {self.path} HTTP/1.1".encode("ascii")
        kept = [(k, v) for k, v in self.headers if k in _FORWARDED_HEADERS]
        if secret:
            kept = [(k, v.replace(placeholder.encode(), secret.encode())) for k, v in kept]
        kept += [(b"content-length", b"%d" % len(body)), (b"connection", b"close")]
        return b"\r\n".join([line, *(k + b": " + v for k, v in kept), b"", body])


async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> HttpRequest | None:
    """Reads one request from a connection. Writes to `writer` only to ask for the body, if the client waits
    for that (`Expect: 100-continue`). Returns None if the connection is closed before a request begins.
    Raises RequestError if the request is malformed, incomplete or too large."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEADER_BYTES)
    head: h11.Request | None = None
    body = bytearray()
    try:
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                if connection.they_are_waiting_for_100_continue:
                    go_on = h11.InformationalResponse(status_code=100, headers=[])
                    writer.write(connection.send(go_on) or b"")
                connection.receive_data(await reader.read(_READ_BYTES))
            elif isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > MOST_BYTES:
                    raise RequestError(f"the body has more than {MOST_BYTES} bytes")
            elif isinstance(event, h11.EndOfMessage) and head is not None:
                method, path = head.method.decode("ascii"), head.target.decode("ascii")
                return HttpRequest(method, path, tuple(head.headers), bytes(body))
            else:  # the stream has ended
                return None
    except h11.RemoteProtocolError as error:
        raise RequestError(str(error)) from error


def refusal(reason: str, status: int = 400) -> bytes:
    """Returns the bytes of an HTTP response with the status code `status` that refuses a request. The body is
    an error in the JSON form of OpenAI's API, with the text `reason`."""
    error = {"message": f"air refuses this request: {reason}", "type": "invalid_request_error"}
    body = json.dumps({"error": error | {"param": None, "code": "refused"}}).encode()
    head = f"HTTP/1.1 {status} Refused\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body
