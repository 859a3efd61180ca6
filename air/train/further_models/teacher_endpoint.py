"""Asks a model server for the log-probabilities that a teacher model gives to sampled tokens (for on-policy
distillation), and checks whether the teacher has the policy's tokenizer.

The protocol is vLLM's: `POST {base_url}/completions` with token ids as the prompt and `prompt_logprobs`. The
server returns log-probabilities at temperature 1. If a request fails, InferenceError is raised (an
infrastructure error), so no failure becomes a reward or an advantage.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import httpx

from air import json_lines
from air.aio import cancel_and_wait, run_concurrently
from air.errors import ConfigError, InferenceError
from air.train.config.further_models_config import TeacherConfig
from air.train.tree.sample import Sample

KEY = "orchestrator.algo.teacher"
"""The key, in the run file, of the teacher's settings for the algorithm `opd` (on-policy distillation)."""
_ATTEMPTS = 4
_POLL_SECONDS = 0.5
_AT_ONCE = 16
"""The largest number of requests, each with one sequence, that are open at the same time."""
_TIMEOUT = httpx.Timeout(600.0, connect=10.0)
_READY_TIMEOUT = 10.0
_STOP_SECONDS = 0.1
"""Interval in seconds at which `score`, while it waits for the server, checks whether the run is being
stopped."""


class TeacherEndpoint:
    """Client of a frozen teacher model on the vLLM server that `config` names. Call `wait` once before the
    first `score`, and `close` at the end.

    `say` is called with one line of text if the server does not answer at once. `key` is the key of `config`
    in the run file, which error messages name. A failed request of `score` is sent again after `pause`
    seconds, at most three times; each further pause is twice as long as the one before. If the event
    `stopping` is set, `wait` and `score` end with InferenceError: `wait` after its current request, `score`
    also during a request. `close` sets `stopping`.
    """

    def __init__(
        self,
        config: TeacherConfig,
        say: Callable[[str], None],
        *,
        key: str = KEY,
        pause: float = 1.0,
        stopping: threading.Event | None = None,
    ) -> None:
        if config.base_url is None:
            raise ValueError("a teacher without base_url is no endpoint")
        self.config, self._say, self._pause = config, say, pause
        self._key, self._where = key, f"{key}.base_url"
        self._stopping = stopping or threading.Event()
        self._url = config.base_url.rstrip("/")
        key = os.environ.get(config.api_key_var) or "EMPTY"
        self._headers = {"Authorization": f"Bearer {key}", **config.headers}

    def wait(self) -> None:
        """Waits until the server answers. Raises InferenceError if the server does not answer within the
        seconds of the setting `wait_for_ready_timeout`, or if the event `stopping` is set. Raises ConfigError
        if the server does not list the model, unless the setting `skip_model_check` is true."""
        limit = self.config.wait_for_ready_timeout
        deadline, told = time.monotonic() + limit, False
        while True:
            try:
                answer = httpx.get(
                    f"{self._url}/models", headers=self._headers, timeout=_READY_TIMEOUT
                )
                answer.raise_for_status()
                break
            except httpx.HTTPError as error:
                if time.monotonic() >= deadline:
                    raise InferenceError(
                        f"{self._where}: no answer from {self._url} within {limit} s ({_text(error)}) — "
                        "start the teacher's server, or correct the URL"
                    ) from error
            if not told:
                self._say(f"waiting up to {limit} s for the teacher at {self._url}")
                told = True
            if self._stopping.wait(_POLL_SECONDS):
                raise self._stopped()
        if not self.config.skip_model_check:
            self._check_model(answer)

    def check_tokens(self, tokenizer: Any) -> None:
        """Raises ConfigError if the server's model has another tokenizer than the policy, whose tokenizer is
        `tokenizer`, or if the server cannot turn token ids into text. Compares the text of the added tokens
        and of about 256 others. Spaces are not compared, because versions of `transformers` differ in them.
        Raises InferenceError if the server does not answer."""
        size = len(tokenizer)
        ids = sorted({*range(0, size, max(1, size // 256)), *tokenizer.added_tokens_decoder})
        url = f"{self._url.removesuffix('/v1')}/detokenize"
        body = {"model": self.config.name, "tokens": ids}
        try:
            answer = httpx.post(url, headers=self._headers, json=body, timeout=_READY_TIMEOUT)
        except httpx.HTTPError as error:
            raise InferenceError(f"{self._where}: no answer from {url} ({_text(error)})") from error
        try:
            text = str(json_lines.decode(answer.content)["prompt"])
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{url} gives no text for the policy's token ids (status {answer.status_code})",
                where=self._where,
                remedy="serve the teacher with vLLM, and name a model with the policy's tokenizer",
            ) from error
        if "".join(text.split()) != "".join(tokenizer.decode(ids).split()):
            raise ConfigError(
                f"{self.config.name!r} has another tokenizer than the policy, whose token ids it must sample",
                where=f"{self._key}.name",
                remedy="name a model with the policy's tokenizer",
            )

    def score(self, samples: Sequence[Sample]) -> list[list[float]]:
        """Returns, for each sample, the teacher's log-probabilities of the tokens for which `Sample.mask` is
        true, in nats. Raises InferenceError if all attempts of a request fail, or if the server's answer
        lacks log-probabilities. The calling thread must have no running event loop."""
        return asyncio.run(self._score_all(samples))

    def close(self) -> None:
        """Ends all calls of `wait` and `score` in other threads with InferenceError."""
        self._stopping.set()

    async def _score_all(self, samples: Sequence[Sample]) -> list[list[float]]:
        if self._stopping.is_set():
            raise self._stopped()
        async with httpx.AsyncClient(headers=self._headers, timeout=_TIMEOUT) as http:
            work = asyncio.create_task(
                run_concurrently([self._score(http, sample) for sample in samples], _AT_ONCE)
            )
            while not work.done():
                await asyncio.wait([work], timeout=_STOP_SECONDS)
                if self._stopping.is_set():
                    await cancel_and_wait(work)
                    raise self._stopped()
            return work.result()

    def _stopped(self) -> InferenceError:
        return InferenceError(f"{self._where}: the run stopped while it asked {self._url}")

    def _check_model(self, answer: httpx.Response) -> None:
        try:
            names = [str(model["id"]) for model in json_lines.decode(answer.content)["data"]]
        except (ValueError, KeyError, TypeError) as error:
            raise InferenceError(
                f"{self._where}: {self._url}/models is no list of models"
            ) from error
        if self.config.name not in names:
            raise ConfigError(
                f"{self._url} serves {', '.join(names) or 'no model'}, not {self.config.name!r}",
                where=f"{self._key}.name",
                remedy="use the name on the server, or set skip_model_check = true",
            )

    async def _score(self, http: httpx.AsyncClient, sample: Sample) -> list[float]:
        body = {
            "model": self.config.name,
            "prompt": sample.token_ids,
            "max_tokens": 1,
            "temperature": 1.0,
            "prompt_logprobs": 0,  # only the prompt's own tokens, no alternatives
        }
        entries = await self._answer(http, body)
        tokens = zip(entries, sample.token_ids, sample.mask, strict=True)
        try:
            return [_logprob(entry, token) for entry, token, sampled in tokens if sampled]
        except (KeyError, TypeError, ValueError) as error:
            raise InferenceError(
                f"{self._where}: {self._url} gave no prompt_logprobs of these tokens ({_text(error)}) — it "
                "must be a vLLM server, and the teacher must have the policy's tokenizer"
            ) from error

    async def _answer(self, http: httpx.AsyncClient, body: dict[str, Any]) -> list[Any]:
        """Posts the request `body` and returns the list `prompt_logprobs` of the answer (one entry per
        token), or an empty list if the answer has none. Repeats the request after connection errors and the
        statuses 429 and 5xx. Raises InferenceError if all attempts fail, or if the server refuses the
        request."""
        for attempt in range(_ATTEMPTS):
            if attempt:
                await asyncio.sleep(self._pause * 2 ** (attempt - 1))
            try:
                answer = await http.post(f"{self._url}/completions", json=body)
                if answer.status_code < 500 and answer.status_code != 429:
                    break
                failure = f"status {answer.status_code}"
            except httpx.TransportError as error:
                failure = _text(error)
        else:
            raise InferenceError(
                f"{self._where}: the teacher at {self._url} failed {_ATTEMPTS} times ({failure})"
            )
        if answer.is_error:
            raise InferenceError(
                f"{self._where}: {self._url} refused a request with status {answer.status_code}: "
                f"{answer.text[:300]}"
            )
        try:
            entries = json_lines.decode(answer.content)["choices"][0]["prompt_logprobs"]
        except (ValueError, KeyError, IndexError, TypeError):
            entries = None
        return entries if isinstance(entries, list) else []


def _logprob(entry: Any, token: int) -> float:
    """Returns the log-probability of `token` from one entry of `prompt_logprobs`, which has the form
    `{"token id": {"logprob": …}}`."""
    return float(entry[str(token)]["logprob"])


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
