"""The request handlers of SandboxFusion's dataset endpoints, with which clients get programming problems and
grade a model's answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

from air.serve.fusion.datasets import overall
from air.serve.fusion.datasets.messages import (
    DatasetRequest,
    EvalResult,
    GetMetricsRequest,
    GetPromptByIdRequest,
    GetPromptsRequest,
    Ids,
    Metrics,
    MetricsFunction,
    Prompt,
    Prompts,
    SubmitRequest,
)
from air.serve.fusion.datasets.store import Store
from air.serve.fusion.programs import BadRequest


class Datasets:
    """The request handlers for one server's datasets of programming problems. All methods raise BadRequest if
    the request is invalid."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def list_ids(self, request: GetPromptsRequest, _: dict[str, Any]) -> Ids:
        """Returns the ids of a dataset's problems.

        The second argument is not used; all handlers have it.
        """
        grader = self._store.grader(request)
        with _rows_checked():
            return Ids([grader.id_of(row) for row in self._store.rows(request)])

    async def get_prompts(self, request: GetPromptsRequest, _: dict[str, Any]) -> Prompts:
        """Returns the prompts of a dataset's problems.

        The second argument is not used; all handlers have it.
        """
        grader = self._store.grader(request)
        with _rows_checked():
            rows = self._store.rows(request)
            return Prompts([grader.prompt(row, request.config) for row in rows])

    async def get_prompt_by_id(self, request: GetPromptByIdRequest, _: dict[str, Any]) -> Prompt:
        """Returns the prompt of one problem of a dataset.

        The second argument is not used; all handlers have it.
        """
        grader = self._store.grader(request)
        with _rows_checked():
            return grader.prompt(self._store.row(request), request.config)

    async def submit(self, request: SubmitRequest, log_fields: dict[str, Any]) -> EvalResult:
        """Grades one completion (a model's answer to a problem), and returns the result.

        Adds the dataset and the result to `log_fields`, for the server's log. Raises InfrastructureError if
        the server failed.
        """
        grader = self._store.grader(request)
        with _rows_checked():
            result = await grader.grade(self._store.row(request), request)
        log_fields |= {"dataset": request.dataset, "accepted": result.accepted}
        return result

    async def get_metrics(self, request: GetMetricsRequest, _: dict[str, Any]) -> Metrics:
        """Returns the metrics of grading results, such as the accepted share.

        The second argument is not used; all handlers have it.
        """
        self._store.grader(request)
        results = [result.model_dump() for result in request.results]
        return Metrics(overall.get_metrics(results))

    async def get_metrics_function(
        self, request: DatasetRequest, _: dict[str, Any]
    ) -> MetricsFunction:
        """Returns the source of a Python function that computes the metrics of grading results.

        The second argument is not used; all handlers have it.
        """
        self._store.grader(request)
        text = files("air.serve.fusion.datasets").joinpath("overall.py").read_text("utf-8")
        return MetricsFunction(function=text)


@contextmanager
def _rows_checked() -> Iterator[None]:
    """Context manager: raises BadRequest if the code in the block fails because a problem (a row of a
    dataset) lacks a field, or has a field of the wrong type."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        text = f"the problem's row does not fit its grader: {error!r}"
        raise BadRequest(text, "config", 400) from error
