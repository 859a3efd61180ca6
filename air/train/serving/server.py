"""air's own inference server: samples the replies of the policy (the trained model) for clients of vLLM's
HTTP interface, in a thread of the trainer's process.

The endpoints are `GET /health`, `/version`, `/metrics` and `/v1/models`; `POST /v1/chat/completions`
(messages and text); `POST /inference/v1/generate` (token ids and log-probabilities); and `POST /detokenize`
(the text of token ids). There is no authentication, so the server should listen only on a loopback address;
on such an address, it refuses requests of web pages of other sites. It also refuses requests for streaming,
stop strings, penalties, several replies to one prompt, or guided decoding. In a response with a sampled
reply, the header `x-weights-version` is the version number of the weights. The server uses the policy's
weights without a copy: to change them, the trainer must do so inside `exclusive()`, and then call
`update_weights()`.

The caller should set the number of torch's threads before the first request. If boxes (agents' sandboxes) use
the same few CPU cores, one thread is best: several threads would wait for each other, and a small model would
sample ten times slower.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any, Self

import torch
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from air import json_lines
from air.env.chat.guarded_renderer import GuardedRenderer
from air.errors import InferenceError, UsageError
from air.origin_check import is_loopback
from air.sandbox.contract import ownership
from air.train.model.policy import Policy
from air.train.serving import protocol, self_check
from air.train.serving.cross_site_requests import RefusingOtherSites
from air.train.serving.prefix_cache import default_limit
from air.train.serving.protocol import BadRequest
from air.train.serving.sampler import Sampler
from air.train.serving.scheduler import Metrics, Reply, Scheduler, ServerStoppedError

VERSION_HEADER = "x-weights-version"
_POLL_SECONDS = 0.25
"""Seconds between two checks, while a reply is being sampled, whether the client has disconnected."""
_START_SECONDS = 30.0


class InferenceServer:
    """An HTTP server that samples replies from one policy (the trained model). A `with` block starts and
    stops the server.

    The server listens on the address `host`; port 0 selects a free port. A prompt and its reply have at most
    `max_model_len` tokens together (None: the model's limit). At most `max_batch` requests are sampled at the
    same time. When a request arrives at an idle server, the server waits `window` seconds for further
    requests. `name` is the model's name in requests (None: the policy's name). If `alone` is true, requests
    are sampled one at a time, so that rounding errors in a reply do not depend on other requests. The prefix
    cache, with the keys and values of earlier prompts and replies, has at most `prefix_cache_mb` MiB (None:
    an eighth of the memory that is free when the server is created; 0: no cache).
    """

    def __init__(
        self,
        policy: Policy,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        max_model_len: int | None = None,
        max_batch: int = 32,
        name: str | None = None,
        window: float = 0.003,
        alone: bool = False,
        prefix_cache_mb: float | None = None,
    ) -> None:
        self.policy = policy
        self.host, self.port = host, port
        self.name = name or policy.name
        self.limits = protocol.Limits(
            max_model_len=min(max_model_len or policy.max_length, policy.max_length),
            vocab_size=int(policy.model.config.vocab_size),
            eos_ids=policy.eos_ids,
        )
        sampler = Sampler(
            policy,
            max_batch=max_batch,
            max_model_len=self.limits.max_model_len,
            prefix_cache_bytes=default_limit(policy.device)
            if prefix_cache_mb is None
            else int(prefix_cache_mb * 2**20),
        )
        self._scheduler = Scheduler(sampler, window=window, alone=alone)
        self._last_metrics = Metrics()
        self._renderer = GuardedRenderer(policy.renderer(), policy.tokenizer)
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """The root address (URL) of the server. An OpenAI client needs this address with `/v1` appended."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def version(self) -> int:
        """The version number of the weights: 0 at first; each call of `update_weights` adds 1."""
        return self._scheduler.version

    def start(self) -> None:
        """Starts the server. Returns when the server answers requests. Raises UsageError if the address or
        port cannot be used, or if the sampler computes other log-probabilities than the trainer. Raises
        InferenceError if the server does not start within half a minute."""
        self_check.check(self.policy, self.limits.max_model_len)
        listener = self._bind()
        ownership.mark_children()
        config = uvicorn.Config(
            self._app(),
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=5,
            # Long, because a client that reuses a connection while the server closes it sees a failure.
            timeout_keep_alive=3600,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [listener]}, name="air-http", daemon=True
        )
        self._scheduler.start()
        self._thread.start()
        deadline = time.monotonic() + _START_SECONDS
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                self.stop()
                raise InferenceError(f"the inference server did not start at {self.url}")
            time.sleep(0.005)

    def stop(self) -> None:
        """Stops the server. Unfinished requests get a response with the status 503."""
        self._scheduler.stop()
        if self._server is not None:
            self._server.should_exit = True
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def ready(self) -> None:
        """Raises InferenceError if the server has ended; otherwise returns at once."""
        if self._thread is None or not self._thread.is_alive():
            raise InferenceError("the inference server has ended")

    def exclusive(self) -> AbstractContextManager[None]:
        """Context manager: during the `with` block, the policy's weights may be changed. Before the block,
        waits until no request is running, and frees all cached keys and values. Requests that arrive during
        the block wait until its end. Raises ServerStoppedError if the server has been stopped."""
        return self._scheduler.exclusive()

    def update_weights(self, state: Mapping[str, torch.Tensor] | None = None) -> int:
        """Waits until no request is running, loads the weights `state` (tensors by name) into the policy, and
        returns the version number of the new weights. If `state` is None, loads nothing: the caller has
        already changed the policy's weights in place."""
        with self.exclusive():
            if state is not None:
                self.policy.model.load_state_dict(state)
            return self._scheduler.next_version()

    def version_of(self, token_ids: Sequence[int], logprobs: Sequence[float]) -> int | None:
        """Returns the version number of the weights that sampled a reply. The reply is recognised by the ids
        of its tokens and their log-probabilities. Returns None if neither of the last two versions sampled
        such a reply."""
        return self._scheduler.version_of(token_ids, logprobs)

    def step_metrics(self) -> dict[str, float]:
        """Returns three metrics by name: `prompt_tokens`, the number of prompt tokens since the last call;
        `cached_tokens`, the number of those among them whose keys and values came from the prefix cache; and
        `prefix_cache_mb`, the largest size of the prefix cache so far, in MiB."""
        metrics, last = self.metrics(), self._last_metrics
        self._last_metrics = metrics
        return {
            "prompt_tokens": metrics.prompt_tokens - last.prompt_tokens,
            "cached_tokens": metrics.cached_tokens - last.cached_tokens,
            "prefix_cache_mb": metrics.prefix_cache_bytes / 2**20,
        }

    def metrics(self) -> Metrics:
        """Returns counters of requests, tokens and times since the server was created."""
        return self._scheduler.metrics()

    def _bind(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((self.host, self.port))
        except (OSError, OverflowError) as error:
            listener.close()
            raise UsageError(
                f"cannot listen there ({getattr(error, 'strerror', None) or error})",
                where=f"{self.host}:{self.port}",
                remedy="choose another port, or 0 for a free one",
            ) from None
        self.port = int(listener.getsockname()[1])
        return listener

    def _app(self) -> Starlette:
        app = Starlette(
            routes=[
                Route("/health", self._health),
                Route("/version", self._version),
                Route("/metrics", self._metrics),
                Route("/v1/models", self._models),
                Route("/v1/chat/completions", self._answering(self._chat), methods=["POST"]),
                Route("/inference/v1/generate", self._answering(self._generate), methods=["POST"]),
                Route("/detokenize", self._answering(self._detokenize), methods=["POST"]),
            ]
        )
        if is_loopback(self.host):
            app.add_middleware(RefusingOtherSites)
        return app

    async def _health(self, _: Request) -> Response:
        return Response()

    async def _version(self, _: Request) -> Response:
        return JSONResponse({"version": f"air, weights {self.version}"})

    async def _metrics(self, _: Request) -> Response:
        counters = {**asdict(self.metrics()), "weights_version": self.version}
        lines = [f"air_inference_{name} {value}" for name, value in counters.items()]
        return PlainTextResponse("\n".join([*lines, ""]))

    async def _models(self, _: Request) -> Response:
        limit = self.limits.max_model_len
        return JSONResponse(protocol.models_body(self.name, limit, self.version))

    def _answering(
        self, handler: Callable[[Request, dict[str, Any]], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            try:
                return await handler(request, await self._body(request))
            except BadRequest as error:
                status, text = error.status, str(error)
            except ServerStoppedError as error:
                status, text = 503, str(error)
            except InferenceError as error:
                status, text = 500, str(error)
            return JSONResponse(protocol.error_body(text, status), status)

        return answer

    async def _body(self, request: Request) -> dict[str, Any]:
        try:
            body = json_lines.decode(await request.body())
        except ValueError as error:
            raise BadRequest(f"The body is not JSON: {error}") from None
        if not isinstance(body, dict):
            raise BadRequest("The body must be an object")
        model = body.get("model")
        if model not in (None, self.name):
            raise BadRequest(f"The model `{model}` does not exist.", 404)
        return body

    async def _generate(self, request: Request, body: dict[str, Any]) -> Response:
        prompt, fields = body.get("token_ids"), body.get("sampling_params")
        if not isinstance(prompt, list) or not isinstance(fields, dict):
            raise BadRequest("`token_ids` must be a list and `sampling_params` an object")
        if body.get("features") or body.get("content_parts"):
            raise BadRequest("This server takes text only")
        reply = await self._sample(request, prompt, fields)
        answer = protocol.generate_body(_request_id("gen"), len(prompt), reply.completion)
        return JSONResponse(answer, headers=_headers(reply))

    async def _detokenize(self, _: Request, body: dict[str, Any]) -> Response:
        ids, size = body.get("tokens"), self.limits.vocab_size
        if not isinstance(ids, list) or not all(type(i) is int and 0 <= i < size for i in ids):
            raise BadRequest(f"`tokens` must be a list of token ids from 0 to {size - 1}")
        return JSONResponse({"prompt": self.policy.tokenizer.decode(ids)})

    async def _chat(self, request: Request, body: dict[str, Any]) -> Response:
        messages, tools = body.get("messages"), body.get("tools") or None
        if not isinstance(messages, list) or not messages:
            raise BadRequest("`messages` must be a list with at least one message")
        try:
            prompt = self._renderer.render_ids(messages, tools=tools, add_generation_prompt=True)
        except Exception as error:
            # Broad on purpose: renderers do not check messages, and raise any exception for malformed ones.
            kind = type(error).__name__
            raise BadRequest(f"The messages cannot be rendered ({kind}: {error})") from error
        reply = await self._sample(request, prompt, body)
        answer = self._chat_body(prompt, reply, tools, bool(body.get("logprobs")))
        return JSONResponse(answer, headers=_headers(reply))

    def _chat_body(
        self, prompt: list[int], reply: Reply, tools: Any, logprobs: bool
    ) -> dict[str, Any]:
        ids = reply.completion.token_ids
        parsed = self._renderer.parse_response(ids, tools=tools, prompt_ids=prompt)
        message = protocol.chat_message(parsed)
        called = "tool_calls" in message and reply.completion.finish_reason == "stop"
        choice: dict[str, Any] = {
            "index": 0,
            "message": message,
            "finish_reason": "tool_calls" if called else reply.completion.finish_reason,
            "logprobs": None,
        }
        if logprobs:
            names = [self.policy.tokenizer.decode([token]) for token in ids]
            entries = protocol.logprob_entries(names, reply.completion.logprobs)
            choice["logprobs"] = {"content": entries}
        return {
            "id": _request_id("chatcmpl"),
            "object": "chat.completion",
            "created": int(time.time()),
            "model": self.name,
            "choices": [choice],
            "usage": protocol.usage_body(len(prompt), len(ids)),
        }

    async def _sample(self, request: Request, prompt: list[int], fields: dict[str, Any]) -> Reply:
        params = protocol.sampling_params(fields, prompt, self.limits)
        future = asyncio.wrap_future(self._scheduler.submit(prompt, params))
        while not (await asyncio.wait([future], timeout=_POLL_SECONDS))[0]:
            if await request.is_disconnected():
                future.cancel()
                raise InferenceError("the client has gone")
        return future.result()


def _headers(reply: Reply) -> dict[str, str]:
    return {VERSION_HEADER: str(reply.version), "x-queue-seconds": f"{reply.queue_seconds:.4f}"}


def _request_id(kind: str) -> str:
    return f"{kind}-{uuid.uuid4().hex}"
