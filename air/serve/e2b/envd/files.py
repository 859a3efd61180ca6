"""Serves the HTTP endpoint `/files` of envd (E2B's program in a sandbox), with which clients download and
upload files. The body of an upload is a multipart form, or the bytes of one file; it may be compressed with
gzip. Instead of a token, a request can have a signature in its URL."""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import mimetypes
import posixpath
import time
import zlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any
from urllib.parse import quote

from python_multipart.multipart import parse_options_header
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from air.errors import AirError, BoxDiedError
from air.serve.e2b.envd import connect_protocol, forms
from air.serve.e2b.errors import STATUS, ApiError, RpcError, SandboxGone
from air.serve.e2b.helper_program import Program
from air.serve.e2b.sandbox import Sandbox
from air.serve.http.bodies import mark_body_forwarded

PIECE = 1 << 20
_METADATA = "x-metadata-"
_MOST_KEY, _MOST_METADATA = 246, 4096
_PREFIX = len("user.e2b.")
_LOG = logging.getLogger(__name__)


def signature(path: str, operation: str, user: str, token: str, expiration: str | None) -> str:
    """Returns the signature that permits one operation (`read` or `write`) on the file `path` as the account
    `user`. `token` is the sandbox's secret. `expiration` is the time at which the permission ends, in epoch
    seconds as text; None: it never ends."""
    parts = [path, operation, user, token, *([expiration] if expiration is not None else [])]
    digest = hashlib.sha256(":".join(parts).encode()).digest()
    return "v1_" + base64.b64encode(digest).decode().rstrip("=")


def signed(request: Request, sandbox: Sandbox) -> bool:
    """Returns whether the request's URL has a valid signature, with which a client may read or write one file
    of this sandbox without the sandbox's token. Does not check whether the signature has expired (see
    `check_expiration`)."""
    query = request.query_params
    operation = "read" if request.method == "GET" else "write"
    wanted = signature(
        query.get("path", ""),
        operation,
        query.get("username", ""),
        sandbox.token,
        query.get("signature_expiration"),
    )
    return hmac.compare_digest(wanted.encode(), query.get("signature", "").encode())


def check_expiration(request: Request) -> None:
    """Raises ApiError if the query parameter `signature_expiration` of the request is a time in the past, or
    malformed. Does nothing without this parameter."""
    expiration = request.query_params.get("signature_expiration")
    if expiration is not None and not (expiration.isascii() and expiration.isdigit()):
        raise ApiError(401, "signature_expiration is not a number")
    if expiration is not None and int(expiration) < time.time():
        raise ApiError(401, "signature is already expired")


async def files(sandbox: Sandbox, request: Request) -> Response:
    """Handles `GET /files` (download) and `POST /files` (upload). Returns the response; raises ApiError if
    the request fails."""
    if request.method not in ("GET", "POST"):
        raise ApiError(405, f"/files serves GET and POST, not {request.method}")
    try:
        async with sandbox.use():
            if request.method == "GET":
                return await _download(sandbox, request)
            return JSONResponse(await _upload(sandbox, request))
    except RpcError as error:
        raise _as_api(error) from error


def _as_api(error: RpcError) -> ApiError:
    status = {"resource_exhausted": 507, "unauthenticated": 401}.get(error.code, STATUS[error.code])
    return ApiError(status, "not enough disk space available" if status == 507 else str(error))


def _user(request: Request) -> str:
    return request.query_params.get("username") or connect_protocol.user_of(request)


async def _download(sandbox: Sandbox, request: Request) -> Response:
    program, path = sandbox.program("files"), request.query_params.get("path", "")
    answer, _ = await program.ask("read", user=_user(request), path=path)
    name, size, handle = posixpath.basename(answer["path"]), int(answer["size"]), answer["id"]
    headers = {"Content-Disposition": f"inline; filename*=utf-8''{quote(name)}"}
    if size >= 0:
        headers["Content-Length"] = str(size)
    pieces = _pieces(sandbox, program, handle, size)
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return connect_protocol.ClosingResponse(
        pieces,
        lambda: sandbox.spawn(_closed(program, handle)),
        media_type=kind,
        headers=headers,
    )


async def _pieces(
    sandbox: Sandbox, program: Program, handle: int, size: int
) -> AsyncIterator[bytes]:
    """Yields the bytes of an open file in the sandbox: exactly `size` bytes, or up to the end of the file if
    `size` is negative. `handle` is the file's number in air's helper program, which opened it."""
    async with sandbox.use():
        while size:
            _, data = await program.ask("piece", handle=handle)
            if not data:
                break
            data = data[:size] if size > 0 else data
            size -= len(data) if size > 0 else 0
            yield data


async def _closed(program: Program, handle: int) -> None:
    """Closes an open file in the sandbox. `handle` is the file's number in `program`, air's helper program.
    Raises no error if that fails, for instance because the sandbox has ended."""
    try:
        await program.ask("close", handle=handle)
    except (SandboxGone, BoxDiedError):
        return
    except AirError as error:  # for instance, a command of the client's has killed the program
        _LOG.warning("a file in a sandbox was not closed: %s", error)


async def _upload(sandbox: Sandbox, request: Request) -> list[dict[str, Any]]:
    mark_body_forwarded(request.scope)
    program, user, metadata = sandbox.program("files"), _user(request), _metadata(request)
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    path = request.query_params.get("path", "")
    if kind != b"multipart/form-data":
        if not path:
            raise ApiError(400, "path: missing")
        entries = [await _write(program, user, path, metadata, _body(request))]
        return [_written(entry, metadata) for entry in entries]
    if b"boundary" not in options:
        raise ApiError(400, "multipart/form-data without a boundary")
    events = forms.events_of(_body(request), options[b"boundary"])
    written = _form(program, events, user, path, metadata)
    return [_written(entry, metadata) async for entry in written]


async def _form(
    program: Program,
    events: AsyncIterator[str | bytes | None],
    user: str,
    path: str,
    metadata: dict[str, str],
) -> AsyncIterator[str]:
    """Writes the files of a multipart form into the sandbox while they arrive, and yields their paths there.
    `events` are those of `forms.events_of`. If `path` is not empty, the form must have exactly one file,
    which is written to `path`. Otherwise, each file is written to its name in the form. Relative paths start
    at the home folder of the account `user`. `metadata` is stored with each file."""
    count = 0
    async for event in events:
        count += 1
        if path and count > 1:
            raise ApiError(400, "path names one file, but the form has more")
        name = path or str(event)
        if not name:
            raise ApiError(400, "a file of the form has no name")
        yield await _write(program, user, name, metadata, _one_file(events))
    if path and not count:
        raise ApiError(400, "path names one file, but the form has none")


async def _one_file(events: AsyncIterator[str | bytes | None]) -> AsyncIterator[bytes]:
    async for event in events:
        if not isinstance(event, bytes):
            return
        yield event


async def _body(request: Request) -> AsyncGenerator[bytes, None]:
    """Yields the pieces of the request's body, decompressed if the header `Content-Encoding` is `gzip`.
    Raises ApiError for other encodings, or if the body is not complete and valid gzip."""
    encoding = request.headers.get("content-encoding", "identity")
    if encoding not in ("identity", "gzip"):
        raise ApiError(400, f"Content-Encoding: {encoding!r} is not served: use gzip or none")
    if encoding == "identity":
        async for data in request.stream():
            yield data
        return
    inflate = zlib.decompressobj(wbits=31)
    try:
        async for data in request.stream():
            while data:
                if inflate.eof:  # gzip files may be joined to one
                    inflate = zlib.decompressobj(wbits=31)
                yield inflate.decompress(data, PIECE)
                data = inflate.unconsumed_tail or inflate.unused_data
        yield inflate.flush()
    except zlib.error as error:
        raise ApiError(400, f"the body is not gzip: {error}") from None
    if not inflate.eof:
        raise ApiError(400, "the body is not gzip: its end is missing")


async def _write(
    program: Program, user: str, path: str, metadata: dict[str, str], data: AsyncIterator[bytes]
) -> str:
    answer, _ = await program.ask("write", user=user, path=path, metadata=metadata)
    try:
        async for part in data:
            for at in range(0, len(part), PIECE):
                await program.ask("add", part[at : at + PIECE], handle=answer["id"])
    finally:
        await program.ask("close", handle=answer["id"])
    return str(answer["path"])


def _written(path: str, metadata: dict[str, str]) -> dict[str, Any]:
    entry: dict[str, Any] = {"path": path, "name": posixpath.basename(path), "type": "file"}
    return entry | ({"metadata": metadata} if metadata else {})


def _metadata(request: Request) -> dict[str, str]:
    """Returns the metadata for uploaded files from the request headers `X-Metadata-KEY`: a dict that maps
    each KEY to the header's value. If a header occurs twice, the first one counts. Raises ApiError if the
    metadata is malformed or too long."""
    metadata: dict[str, str] = {}
    for name, value in request.headers.items():
        if name.startswith(_METADATA):
            metadata.setdefault(name.removeprefix(_METADATA), value)
    for key, value in metadata.items():
        if not key or len(key) > _MOST_KEY or not all(" " <= c <= "~" for c in key + value):
            raise ApiError(
                400, f"metadata {key!r}: only printable ASCII, a key of 1 to {_MOST_KEY} bytes"
            )
    if sum(len(key) + len(value) + _PREFIX for key, value in metadata.items()) > _MOST_METADATA:
        raise ApiError(400, f"metadata: more than {_MOST_METADATA} bytes")
    return metadata
