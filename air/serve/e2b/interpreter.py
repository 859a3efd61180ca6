"""Serves E2B's code interpreter: a client's request to `/execute` runs code in a Jupyter kernel in the
sandbox, and requests to `/contexts` create, list and end such kernels."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from pydantic import BaseModel, ConfigDict
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from air.errors import AirError
from air.serve.e2b import request_bodies
from air.serve.e2b.envd.accounts import DEFAULT, account
from air.serve.e2b.errors import ApiError, RpcError, SandboxGone
from air.serve.e2b.helper_program import Program
from air.serve.e2b.sandbox import Sandbox

MOST_CONTEXTS = 32
MOST_UNREAD = 16
"""The maximum number of outputs of one execution that wait for the client to read them. While this number is
reached, the running code pauses at its next output."""
_PYTHON = ("python", "python3")


class Execute(BaseModel):
    """The body of the request `POST /execute`, which runs code in a Jupyter kernel."""

    model_config = ConfigDict(extra="forbid", strict=True)

    code: str
    context_id: str | None = None
    language: str | None = None
    env_vars: dict[str, str] | None = None


class NewContext(BaseModel):
    """The body of `POST /contexts`, which creates a context (E2B's word for a Jupyter kernel)."""

    model_config = ConfigDict(extra="forbid", strict=True)

    language: str | None = None
    cwd: str | None = None


class Context:
    """A context (E2B's word for a Jupyter kernel with its variables). `program` is air's helper program that
    runs the kernel in the box; this object receives the outputs that the program reports."""

    def __init__(self, ident: str, program: Program, cwd: str) -> None:
        self.id, self.program, self.cwd = ident, program, cwd
        self.lock = asyncio.Lock()
        self._runs: dict[int, asyncio.Queue[dict[str, Any] | None]] = {}
        self._numbers = itertools.count(1)
        program.events = self

    @property
    def body(self) -> dict[str, str]:
        """The context (Jupyter kernel) as the JSON object that clients get: its id, language and working
        folder."""
        return {"id": self.id, "language": "python", "cwd": self.cwd}

    async def event(self, header: dict[str, Any]) -> None:
        """Receives one output of running code, which air's helper program reports. Waits while `MOST_UNREAD`
        outputs of this execution wait for the client to read them."""
        if run := self._runs.get(header["run"]):
            await run.put(dict(header["output"]))

    def lost(self, error: AirError) -> None:
        """Does nothing. `Program` calls this method when the helper program in the box has ended. Nothing is
        to be done here, because each running `execute` then raises an error anyway."""

    async def execute(self, code: str, env: dict[str, str]) -> AsyncGenerator[dict[str, Any], None]:
        """Runs `code` in the kernel, with `env` as additional environment variables, and yields its outputs
        as JSON objects in E2B's form. If the caller closes the generator early, the code is interrupted."""
        number = next(self._numbers)
        outputs = self._runs[number] = asyncio.Queue(MOST_UNREAD)
        work = asyncio.create_task(self._work(outputs, run=number, source=code, env=env))
        try:
            while (output := await outputs.get()) is not None:
                yield output
            await work
        finally:
            del self._runs[number]
            while not outputs.empty():  # the program may wait for room
                outputs.get_nowait()
            if not work.done():
                work.cancel()
                with contextlib.suppress(RpcError, SandboxGone):
                    await asyncio.shield(self.program.ask("interrupt", run=number))

    async def _work(self, outputs: asyncio.Queue[dict[str, Any] | None], **fields: Any) -> None:
        try:
            await self.program.ask("execute", **fields)
        finally:
            await outputs.put(None)


class Contexts:
    """All contexts of one sandbox. A context is a Jupyter kernel; clients can create several."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._contexts: dict[str, Context] = {}
        self._default: Context | None = None
        self._default_lock = asyncio.Lock()

    async def create(self, language: str | None, cwd: str | None) -> Context:
        """Creates a context (Jupyter kernel) with the working folder `cwd`, relative to the home folder of
        the default account `user` (None: the home folder). The kernel starts when it first executes code.
        Raises ApiError if the language is not Python (None: Python), or if the sandbox already has
        `MOST_CONTEXTS` contexts."""
        if (language or "python") not in _PYTHON:
            raise ApiError(400, f"language {language!r} is not served by air: use 'python'")
        sandbox = self._sandbox
        try:
            user = await account(sandbox, DEFAULT)
        except RpcError as error:
            raise ApiError(500, str(error)) from error
        # No `await` follows, so that requests at the same time cannot exceed the limit.
        if len(self._contexts) >= MOST_CONTEXTS:
            raise ApiError(429, f"the sandbox has {MOST_CONTEXTS} contexts: remove one first")
        folder = user.path(cwd or "")
        ident = secrets.token_hex(8)
        env = {"HOME": user.home, "USER": user.name, "LOGNAME": user.name} | sandbox.settings.env
        program = Program(sandbox.awake_box, "kernel", folder, user=user.name, env=env)
        sandbox.programs[f"kernel-{ident}"] = program
        context = self._contexts[ident] = Context(ident, program, folder)
        return context

    async def of(self, body: Execute) -> Context:
        """Returns the context (Jupyter kernel) in which the code of `body`, a request to run code, must run:
        the one that `body` names, or the default context, which is created if needed. Raises ApiError if the
        named context does not exist, or if the language is not Python."""
        if body.context_id is not None and body.context_id != "default":
            return self.find(body.context_id)
        if (body.language or "python") not in _PYTHON:
            raise ApiError(400, f"language {body.language!r} is not served by air: use 'python'")
        async with self._default_lock:
            if self._default is None:
                self._default = await self.create(None, None)
            return self._default

    def find(self, ident: str) -> Context:
        """Returns the context (Jupyter kernel) with this id. Raises ApiError if there is none."""
        if (context := self._contexts.get(ident)) is None:
            raise ApiError(404, f"Context {ident} not found")
        return context

    def all(self) -> list[Context]:
        """Returns all contexts (Jupyter kernels) of the sandbox."""
        return list(self._contexts.values())

    async def remove(self, ident: str) -> None:
        """Removes a context: ends its Jupyter kernel. Raises ApiError if there is no context with this id."""
        context = self.find(ident)
        del self._contexts[ident]
        if context is self._default:
            self._default = None
        self._sandbox.programs.pop(f"kernel-{ident}", None)
        await context.program.close()


def contexts_of(sandbox: Sandbox) -> Contexts:
    """Returns the object that holds the contexts (Jupyter kernels) of a sandbox. The first call creates this
    object."""
    contexts: Contexts = sandbox.box_state.setdefault("contexts", Contexts(sandbox))
    return contexts


async def serve(sandbox: Sandbox, request: Request) -> Response:
    """Handles one request to the code interpreter of a sandbox, such as `POST /execute`, and returns the
    response. Raises ApiError if the request fails."""
    contexts, path = contexts_of(sandbox), request.url.path.rstrip("/")
    method, _, rest = request.method, *path.partition("/contexts")[1:]
    ident = rest.strip("/")
    try:
        async with sandbox.use():
            if (method, path) == ("GET", "/health"):
                return PlainTextResponse("OK")
            if (method, path) == ("POST", "/execute"):
                body = await request_bodies.body_of(request, Execute)
                return _stream(sandbox, await contexts.of(body), body)
            if (method, path) == ("GET", "/contexts"):
                return JSONResponse([context.body for context in contexts.all()])
            if (method, path) == ("POST", "/contexts"):
                new = await request_bodies.body_of(request, NewContext)
                context = await contexts.create(new.language, new.cwd)
                return JSONResponse(context.body, status_code=201)
            if method == "POST" and ident.endswith("/restart"):
                await contexts.find(ident.removesuffix("/restart")).program.ask("restart")
                return Response(status_code=204)
            if method == "DELETE" and ident:
                await contexts.remove(ident)
                return Response(status_code=204)
    except RpcError as error:
        raise ApiError(500, str(error)) from error
    raise ApiError(404, f"air's code interpreter does not serve {method} {path}")


def _stream(sandbox: Sandbox, context: Context, body: Execute) -> Response:
    async def lines() -> AsyncIterator[bytes]:
        try:
            async with (
                sandbox.use(),
                contextlib.aclosing(context.execute(body.code, body.env_vars or {})) as outputs,
            ):
                async for output in outputs:
                    yield json.dumps(output).encode() + b"\n"
        except (RpcError, SandboxGone) as error:
            text = f"the kernel failed: {error}"
            failure = {"type": "error", "name": "KernelFailed", "value": text, "traceback": text}
            yield json.dumps(failure).encode() + b"\n"

    return StreamingResponse(lines(), media_type="application/x-ndjson")
