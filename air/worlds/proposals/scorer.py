"""Asks a frozen executor to answer a proposed question k times: `POST /evaluate`.

    {"tasks": [{"id", "question", "answer"?}], "k", "max_turns", "sampling"}
        → {"results": [{"id", "p_hat", "majority", "n_valid", "k", "tool_calls_mean", "answers"}]}

Whose failure is it if there is no result? The service is asked a question that the proposer did not choose.
If it does not answer that one, that is an infrastructure failure, which masks the episode. If it does, and
fails at the proposer's question again, or is too slow for it again, the question is to blame: none of its k
attempts has an answer. Else a proposer would escape from a low payment by questions that make the executor
ramble.
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

from air.errors import InfrastructureError

_LOG = logging.getLogger(__name__)
PROBE = "What is 1 + 1?"
"""The question that shows whether the service is there."""
MAX_ANSWER = 4 * 2**20
"""The largest answer of the service, in bytes."""


@dataclass(frozen=True)
class Answered:
    """The executor's k answers to one question."""

    answers: Sequence[str | None]
    """The final answers; None for a reply without one."""
    tool_calls: float
    """The mean number of tool calls in a reply."""


@dataclass(frozen=True)
class Scorer:
    """The client of a service that answers questions."""

    url: str
    k: int
    max_turns: int = 1
    sampling: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 600.0

    async def answers(self, question: str) -> Answered:
        """Returns k answers to a question, none of them readable if the service fails at this question
        alone. Raises InfrastructureError if the service fails at others, too."""
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
        """Returns k answers to a question. Raises InfrastructureError if there is no result."""
        body = {
            "tasks": [{"id": "0", "question": question}],
            "k": self.k,
            "max_turns": self.max_turns,
            "sampling": dict(self.sampling),
        }
        where = f"POST {self.url.rstrip('/')}/evaluate"
        try:
            # No proxy from the environment: it would send requests for this machine elsewhere.
            async with httpx.AsyncClient(timeout=self.seconds, trust_env=False) as http:
                # httpx limits the time between two pieces of an answer; this limits the whole.
                async with asyncio.timeout(self.seconds):
                    reply = await http.post(where.removeprefix("POST "), json=body)
        except (TimeoutError, httpx.TimeoutException):
            raise InfrastructureError(f"{where}: no answer within {self.seconds:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise InfrastructureError(f"{where}: {error or type(error).__name__}") from error
        if reply.status_code != 200 or len(reply.content) > MAX_ANSWER:
            text = " ".join(reply.text[:200].split())
            raise InfrastructureError(f"{where}: status {reply.status_code}: {text}")
        return _read(reply, self.k, where)


def _read(reply: httpx.Response, k: int, where: str) -> Answered:
    try:
        (result,) = reply.json()["results"]
        answers, calls = result["answers"], float(result["tool_calls_mean"])
        readable = all(answer is None or isinstance(answer, str) for answer in answers)
        if len(answers) != k or not readable or not (math.isfinite(calls) and calls >= 0):
            raise ValueError(f"{len(answers)} answers, {calls} tool calls")
    except (ValueError, KeyError, TypeError) as error:
        text = f"{type(error).__name__}: {error}"
        raise InfrastructureError(f"{where}: the answer is malformed ({text:.200})") from error
    return Answered(answers, calls)
