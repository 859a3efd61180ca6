"""Serves `GET /hello?name=FILE` of Agent0's evaluation service, by which Agent0's curriculum training scores
the questions of its proposer. FILE has the questions; `air.serve.evaluate.row_files` shows its content, and
that of the file with the results. The response is `{"message": …}` with the names of both.

A request that fails writes no results. The status is 400 for a malformed file or name, 403 for a
file that this server may not use or for a request of a web page, 404 if there is no such file, 409 if another
request works on it or if it has changed meanwhile, and 413 if it is too large. As with `/evaluate`, it is 503
if air fails, and 500, with `"stop": true`, if a tool of the user hangs.

A request that claims a file of questions removes an older file with results before it waits for its turn. A
request that is refused before (by its token, page or body, its name, or status 404 or 409) leaves older
results.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from air import origin_check
from air.aio import wait_shielded, while_connected
from air.errors import InfrastructureError, UserCodeError
from air.rewards.proposals.agreement import Equality, agreement, equal_answers, p_hat
from air.serve.evaluate.row_files import FileRefused, Questions, Row, RowFile, RowFiles
from air.serve.evaluate.server import EvaluateServer
from air.serve.http.app import LOG_FIELDS, Protocol, body_of
from air.serve.http.boxes import QueueFull
from air.worlds.proposals.comparison_threads import compare_in_thread
from air.worlds.proposals.scorer import STOP, Answered
from air.worlds.rows.reading import LONGEST_QUESTION

AGENT0_HOST = "0.0.0.0"
"""The host in the URL of Agent0's client, at which it reaches a server on the loopback address. It is no
name that another site could own, so it may be the `Host` of a request."""
NO_ANSWER = "None"
"""The entry of `extracted_results` for a reply without an answer, as Agent0's parser returns it."""
NOT_SCORED = -1
"""The score of a row without a question or without an answer."""


class QuestionFiles(Protocol):
    """Serves `GET /hello?name=FILE`: the server's model answers the questions in a file several times, and
    the server writes their scores into a second file."""

    name = "files"

    def __init__(self, server: EvaluateServer) -> None:
        assert server.files is not None
        self._server, self._files = server, server.files

    def routes(self) -> Sequence[BaseRoute]:
        return [Route("/hello", self._hello, methods=["GET"])]

    def domains(self) -> Sequence[str]:
        return (AGENT0_HOST,)

    async def _hello(self, request: Request) -> Response:
        if request.method != "GET":  # Starlette adds HEAD, which must have no effect
            return Response(status_code=405, headers={"Allow": "GET"})
        site, agent = (request.headers.get(name) for name in ("sec-fetch-site", "user-agent"))
        problem = origin_check.foreign_page(site, agent)
        if problem:
            return JSONResponse({"error": problem}, 403)
        name = request.query_params.get("name")
        if name is None:
            return JSONResponse({"error": "the query has no name: /hello?name=FILE"}, 400)
        try:
            await body_of(request, self._server.config.max_body_mb)
        except ValueError as error:
            return JSONResponse({"error": str(error)}, 413)
        try:
            return await self._scored(request, self._files, name)
        except FileRefused as error:
            return JSONResponse({"error": str(error)}, error.status)
        except QueueFull as error:
            return JSONResponse({"error": str(error)}, 503, {"Retry-After": "1"})
        except InfrastructureError as error:
            return JSONResponse({"error": str(error)}, 503)
        except UserCodeError as error:
            return JSONResponse({"error": str(error), "stop": True}, STOP)

    async def _scored(self, request: Request, files: RowFiles, name: str) -> Response:
        with files.claimed(name) as file:

            async def work() -> str:
                # Shielded: no thread of a request may touch the files when the next request has them.
                await wait_shielded(asyncio.to_thread(file.remove_old_results))
                async with self._server.queue.turn():
                    questions = await wait_shielded(asyncio.to_thread(file.read))
                    request.scope[LOG_FIELDS]["rows"] = len(questions.rows)
                    return await self._score(file, questions)

            warning = await while_connected(request.receive, work)
        message = f"Processed {name}, results saved to {file.results_name}."
        if warning:
            self._server.log.event("warning", text=warning)
            message = f"{message} {warning}."
        return JSONResponse({"message": message})

    async def _score(self, file: RowFile, read: Questions) -> str:
        """Lets the model answer the questions that were `read` from `file`, and writes the file with the
        results. Returns an empty string, or the warning of `RowFile.finish`."""
        rows, server, defaults = read.rows, self._server, self._server.config.defaults
        asked = [row for row in rows if _is_asked(row)]
        answered: Sequence[Answered] = ()
        if asked:
            questions = [row.question for row in asked]
            answered = await server.executor.answers(questions, defaults.k, None, defaults.sampling)
        found = iter(answered)
        equality, results = server.config.equality, []
        for row in rows:
            given = next(found) if _is_asked(row) else Answered([None] * defaults.k, 0.0)
            results.append(await compare_in_thread(partial(result, row, given, equality)))
        return await wait_shielded(asyncio.to_thread(file.finish, results, read.state))


def result(row: Row, answered: Answered, equality: Equality) -> dict[str, Any]:
    """Returns the entry for one row in the file with the results. `answered` has the model's k answers.

    The entry has the row's `question`; as `answer`, the most frequent answer; as `score`, p̂ by the definition
    `as_coded` (`air.rewards.proposals.agreement`); `all_outputs`, the k last replies; and
    `extracted_results`, the k answers. For a row without a question or without an answer, the score is
    `NOT_SCORED`, the answer is the row's, and both lists are empty. Raises InfrastructureError if a
    comparison of answers fails.
    """
    if not _is_complete(row):
        return _entry(row.question, row.answer, NOT_SCORED, [], [])
    found = agreement(answered.answers, equal_answers(equality, row.question))
    score = p_hat(found, row.answer, "as_coded")
    extracted = [NO_ANSWER if answer is None else answer for answer in answered.answers]
    return _entry(row.question, found.majority or "", score, answered.replies, extracted)


def _entry(
    question: str, answer: str, score: float, outputs: Sequence[str], extracted: Sequence[str]
) -> dict[str, Any]:
    return {
        "question": question,
        "answer": answer,
        "score": score,
        "all_outputs": list(outputs),
        "extracted_results": list(extracted),
    }


def _is_complete(row: Row) -> bool:
    return bool(row.question.strip() and row.answer.strip())


def _is_asked(row: Row) -> bool:
    """Returns whether the model gets the question of `row`. It does not if the question is too long; then no
    answer counts, as for a question that is too long for the model's context."""
    return _is_complete(row) and len(row.question) <= LONGEST_QUESTION
