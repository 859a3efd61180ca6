"""The requests and answers of the endpoints of datasets."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import BeforeValidator, FailFast, Field, RootModel

from air.serve.fusion.datasets.extraction import Kind
from air.serve.fusion.messages import Message, RunCodeAnswer

Id = int | str
Row = dict[str, Any]
MOST_ROWS = 1_000_000


def _rows(value: Any) -> Any:
    """Raises ValueError at the first item of a list that is no row; see `first_fault`."""
    for place, each in enumerate(value) if isinstance(value, list) else ():
        if not isinstance(each, dict):
            raise ValueError(f"item {place} is no object")
    return value


class TestConfig(Message):
    """How prompts are written and completions are graded."""

    __test__ = False  # no test of pytest's
    dataset_type: str | None = None
    """The grader, for a dataset that the server does not have, e.g. `CommonOJDataset`."""
    language: str | None = None
    """The language of the completion's code."""
    locale: str | None = None
    """The language of the prompt: `en` or `zh`."""
    is_fewshot: bool | None = None
    """Whether the prompt shows solved examples."""
    compile_timeout: float | None = Field(None, ge=0)
    """Seconds that a compiler may take."""
    run_timeout: float | None = Field(None, ge=0)
    """Seconds that one test may take."""
    custom_extract_logic: str | None = None
    """Python code that finds the code in `completion` and calls `submit_code_blocks`. It runs in a box."""
    provided_data: Annotated[list[Row] | Row | None, BeforeValidator(_rows)] = None
    """The problems, or the row of one problem, that the request brings in place of the server's dataset."""
    extra: dict[str, Any] = Field(default_factory=dict)
    """Settings of the grader."""


class DatasetRequest(Message):
    """Names a dataset."""

    dataset: str
    """The name of the dataset; any if `config.provided_data` is given."""
    config: TestConfig


class GetPromptsRequest(DatasetRequest):
    """Asks for the problems of a dataset from `offset` on."""

    offset: int = Field(0, ge=0)
    limit: int = Field(MOST_ROWS, ge=0)


class GetPromptByIdRequest(DatasetRequest):
    """Asks for one problem."""

    id: Id


class SubmitRequest(DatasetRequest):
    """A model's completion for one problem."""

    id: Id
    completion: str


class TestCase(Message):
    """The result of one test."""

    __test__ = False
    passed: bool
    exec_info: RunCodeAnswer
    """The result of the program."""
    test_info: dict[str, Any] | None = None
    """The test itself."""


class EvalResult(Message):
    """The result of one completion."""

    id: Id
    accepted: bool
    """Whether all tests passed."""
    extracted_code: str
    """The code in the completion."""
    full_code: str | None = None
    """The program that ran, with its tests."""
    test_code: str | None = None
    tests: Annotated[list[TestCase], FailFast()]
    extracted_type: Kind | None = None
    """How the code was found."""
    extra: dict[str, Any] | None = None


class GetMetricsRequest(DatasetRequest):
    """Results of which the metrics are wanted."""

    results: Annotated[list[EvalResult], FailFast()]


class ChatMessage(Message):
    """One message of a prompt that is a conversation."""

    role: str
    content: str


class Prompt(Message):
    """One problem."""

    id: Id
    prompt: str | list[ChatMessage]
    labels: dict[str, Any] = Field(default_factory=dict)


class Prompts(RootModel[list[Prompt]]):
    """Problems."""


class Ids(RootModel[list[Id]]):
    """Ids of problems."""


class Metrics(RootModel[dict[str, Any]]):
    """Metrics by name."""


class MetricsFunction(Message):
    """Python code of a function `get_metrics(results)`."""

    function: str | None


def unpacked(row: Row, name: str) -> Any:
    """Returns a field of a row. Tables of the original store objects as JSON text."""
    value = row[name]
    return json.loads(value) if isinstance(value, str) else value
