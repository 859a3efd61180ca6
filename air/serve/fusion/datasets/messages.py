"""The request and response bodies of SandboxFusion's dataset endpoints. A programming problem in a dataset is
called a row, and is a JSON object."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, FailFast, Field, RootModel
from pydantic_core import from_json

from air.serve.fusion.datasets.extraction import Kind
from air.serve.fusion.messages import Message, RunCodeAnswer

Id = int | str
Row = dict[str, Any]
MOST_ROWS = 1_000_000


def _rows(value: Any) -> Any:
    """Checks `value` before pydantic does, and returns it unchanged: if it is a list, raises ValueError at
    the first item that is not a JSON object. Pydantic alone would collect the errors of all items, which can
    need much memory."""
    for place, each in enumerate(value) if isinstance(value, list) else ():
        if not isinstance(each, dict):
            raise ValueError(f"item {place} is no object")
    return value


class TestConfig(Message):
    """Settings in a request: how the prompts of programming problems are written, and how a model's answers
    (completions) are graded."""

    __test__ = False  # no test of pytest's
    dataset_type: str | None = None
    """The name of the grader, such as `CommonOJDataset`. It is needed for a dataset that the server does not
    have. Null: the server must have the dataset."""
    language: str | None = None
    """The programming language of the completion (a model's answer), by SandboxFusion's name, such as
    `python`. Only the grader `CommonOJDataset` uses this field, and requires it."""
    locale: str | None = None
    """The natural language of the prompt: `en` or `zh`. Null: `en`."""
    is_fewshot: bool | None = None
    """Whether the prompt also contains solved examples, which must be part of the problem or the request.
    Null: it does not."""
    compile_timeout: float | None = Field(None, ge=0)
    """Seconds that the compiler may take. Null or 0: the grader's default."""
    run_timeout: float | None = Field(None, ge=0)
    """Seconds that each test may take. Null or 0: the grader's default."""
    custom_extract_logic: str | None = None
    """Python code that finds the code blocks in a completion (a model's answer). It gets the completion as
    the variable `completion`, and passes a list of `CodeBlock` objects to the function `submit_code_blocks`.
    It runs in a box (container)."""
    provided_data: Annotated[list[Row] | Row | None, BeforeValidator(_rows)] = None
    """Programming problems in the request itself, which replace a dataset of the server: a list of JSON
    objects for requests about several problems, one JSON object for requests about one problem."""
    extra: dict[str, Any] = Field(default_factory=dict)
    """Further settings by name, such as `is_freeform`. Each grader uses other ones; its class describes
    them."""


class DatasetRequest(Message):
    """Base class of the requests that name a dataset of programming problems."""

    dataset: str
    """The name of the dataset. If `config.provided_data` is given, the name does not matter."""
    config: TestConfig


class GetPromptsRequest(DatasetRequest):
    """Requests the prompts or the ids of problems of a dataset: at most `limit`, beginning with the problem
    at position `offset` (from 0)."""

    offset: int = Field(0, ge=0)
    limit: int = Field(MOST_ROWS, ge=0)


class GetPromptByIdRequest(DatasetRequest):
    """Requests the prompt of one problem of a dataset, by the problem's id."""

    id: Id


class SubmitRequest(DatasetRequest):
    """Requests the grading of a completion (a model's answer) for one problem of a dataset."""

    id: Id
    completion: str


class TestCase(Message):
    """The result of one test of a model's answer to a programming problem."""

    __test__ = False
    passed: bool
    exec_info: RunCodeAnswer
    """The result of running the answer's code on this test."""
    test_info: dict[str, Any] | None = None
    """The input and the expected output of the test; null if the grader's tests do not consist of these."""


class EvalResult(Message):
    """The response to a request to grade a completion (a model's answer): whether it passed, and the result
    of each test."""

    id: Id
    accepted: bool
    """Whether the completion (a model's answer) passed all tests."""
    extracted_code: str
    """The code that was found in the completion (a model's answer)."""
    full_code: str | None = None
    """The whole program that ran, including the tests. Null if a test consists of an input and an expected
    output."""
    test_code: str | None = None
    tests: Annotated[list[TestCase], FailFast()]
    extracted_type: Kind | None = None
    """How the code was found in the completion. Null if the whole completion was used as code."""
    extra: dict[str, Any] | None = None


class GetMetricsRequest(DatasetRequest):
    """Requests metrics, such as the accepted share, of the grading results in the field `results`."""

    results: Annotated[list[EvalResult], FailFast()]


class ChatMessage(Message):
    """One message of a prompt that consists of chat messages."""

    role: str
    content: str


class Prompt(Message):
    """The prompt with one problem of a dataset, as a string or as chat messages."""

    id: Id
    prompt: str | list[ChatMessage]
    labels: dict[str, Any] = Field(default_factory=dict)


class Prompts(RootModel[list[Prompt]]):
    """The response to a request for prompts: one for each of several problems of a dataset."""


class Ids(RootModel[list[Id]]):
    """The response to a request for the ids of a dataset's problems."""


class Metrics(RootModel[dict[str, Any]]):
    """The response to a request for the metrics of grading results: their values by name."""


class MetricsFunction(Message):
    """The response to a request for a Python function with which a client itself computes the metrics of
    grading results. It has the source of this function, `get_metrics(results)`."""

    function: str | None


def unpacked(row: Row, name: str) -> Any:
    """Returns the field `name` of a row (a problem of a dataset). If the field is a string, parses it as
    JSON, because SandboxFusion's own tables store objects as JSON text. Raises ValueError if the string is
    not JSON, or is nested so deeply that pydantic could not write the value into a response."""
    value = row[name]
    return from_json(value) if isinstance(value, str) else value
