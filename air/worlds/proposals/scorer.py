"""The client of a service in which an executor (a model with frozen weights) answers a proposed question k
times, to measure how difficult the question is: `POST /evaluate`.

    {"tasks": [{"id", "question", "answer"?}], "k", "max_turns", "sampling"}
        → {"results": [{"id", "p_hat", "majority", "n_valid", "k", "tool_calls_mean", "answers"}]}

If a request fails or times out, a fixed probe question is sent. If the probe fails too, the service is at
fault: InfrastructureError is raised, and the episode is left out of training. If the probe succeeds, the
proposed question is sent once more. If it fails again, the question is at fault, and all k answers count as
missing: otherwise a proposer could avoid a low reward with questions on which the executor never finishes.

If a tool of the executor hangs, the service responds with the status `STOP` and `{"error", "stop": true}`.
The client then raises UserCodeError, which stops the run, because every further episode would fail as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from air import json_lines
from air.errors import InfrastructureError, UserCodeError
from air.worlds.remote.certificates import certificates

_LOG = logging.getLogger(__name__)
STOP = 500
"""The HTTP status with which the service tells a client to stop its run."""
PROBE = "What is 1 + 1?"
"""The fixed question that is sent to check whether the service works."""
MAX_ANSWER = 4 * 2**20
"""The maximum size of a response, in bytes."""
_LONGEST_ERROR = 2000


@dataclass(frozen=True)
class Answered:
    """The executor's k answers to one question."""

    answers: Sequence[str | None]
    """The final answer of each reply, k in all; None for a reply without a final answer."""
    tool_calls: float
    """The mean number of tool calls that the executor made for one answer."""
    replies: Sequence[str] = field(default=(), compare=False, repr=False)
    """The last reply of each episode, k in all, from which the answers were read. Empty if only the answers
    are known."""


@dataclass(frozen=True)
class Scorer:
    """The client of a service that lets an executor, a model with frozen weights, answer questions. `url` is
    the service's base URL, `k` the number of answers to each question, `max_turns` the maximum number of
    turns for one answer, `sampling` the sampling parameters, and `seconds` the time limit of one request."""

    url: str
    k: int
    max_turns: int = 1
    sampling: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 600.0

    async def answers(self, question: str) -> Answered:
        """Returns the executor's k answers to a question; all are None if the service fails twice on this
        question but answers the fixed question `PROBE`. Raises InfrastructureError if the service fails on
        `PROBE` as well, and UserCodeError if a tool of the executor hangs."""
        try:
            return await self._asked(question)
        except InfrastructureError as error:
            failure = error
        await self._asked(PROBE)
        with contextlib.suppress(InfrastructureError):  # logged below
            return await self._asked(question)
        _LOG.warning("the executor fails at a question: %s", failure)
        return Answered([None] * self.k, 0.0)

    async def _asked(self, question: str) -> Answered:
        """Lets the executor answer a question k times, with one request `POST /evaluate` to the service, and
        returns the answers. Raises InfrastructureError if the request fails, and UserCodeError if a tool of
        the executor hangs."""
        body = {
            "tasks": [{"id": "0", "question": question}],
            "k": self.k,
            "max_turns": self.max_turns,
            "sampling": dict(self.sampling),
        }
        where = f"POST {self.url.rstrip('/')}/evaluate"
        try:
            # No proxy from the environment: it would send requests for this machine elsewhere.
            async with httpx.AsyncClient(
                timeout=self.seconds, trust_env=False, verify=certificates()
            ) as http:
                # httpx limits the time between two pieces of an answer; this limits the whole.
                async with asyncio.timeout(self.seconds):
                    reply = await http.post(where.removeprefix("POST "), json=body)
        except (TimeoutError, httpx.TimeoutException):
            raise InfrastructureError(f"{where}: no answer within {self.seconds:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise InfrastructureError(f"{where}: {error or type(error).__name__}") from error
        if reply.status_code != 200 or len(reply.content) > MAX_ANSWER:
            if (problem := _stops(reply)) is not None:
                raise UserCodeError(problem, where=where)
            text = " ".join(reply.text[:200].split())
            raise InfrastructureError(f"{where}: status {reply.status_code}: {text}")
        return _read(reply, self.k, where)


def _stops(reply: httpx.Response) -> str | None:
    """Returns the error message of a response that tells the client to stop its run; None for any other
    response."""
    if reply.status_code != STOP or len(reply.content) > MAX_ANSWER:
        return None
    try:
        body = json_lines.decode(reply.content)
    except ValueError:
        return None
    is_stop = isinstance(body, dict) and body.get("stop") is True
    return str(body.get("error"))[:_LONGEST_ERROR] if is_stop else None


def _read(reply: httpx.Response, k: int, where: str) -> Answered:
    try:
        (result,) = json_lines.decode(reply.content)["results"]
        answers, calls = result["answers"], float(result["tool_calls_mean"])
        readable = all(answer is None or isinstance(answer, str) for answer in answers)
        if len(answers) != k or not readable or not (math.isfinite(calls) and calls >= 0):
            raise ValueError(f"{len(answers)} answers, {calls} tool calls")
    except (ValueError, KeyError, TypeError) as error:
        text = f"{type(error).__name__}: {error}"
        raise InfrastructureError(f"{where}: the answer is malformed ({text:.200})") from error
    return Answered(answers, calls)
