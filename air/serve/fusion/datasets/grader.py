"""Base class of the graders of programming problems: it extracts the code from a completion (a model's
answer), and runs programs in boxes (containers)."""

from __future__ import annotations

import base64
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib.resources import files

from air import aio
from air.errors import InfrastructureError
from air.serve.fusion.datasets import extraction
from air.serve.fusion.datasets.extraction import CodeBlock, Kind
from air.serve.fusion.datasets.messages import (
    EvalResult,
    Id,
    Prompt,
    Row,
    SubmitRequest,
    TestConfig,
)
from air.serve.fusion.messages import RunCodeAnswer, RunCodeRequest
from air.serve.fusion.programs import OUTPUT_BYTES, BadRequest, Programs

AT_ONCE = 4
"""The maximum number of programs for one completion that run at the same time, so that one request cannot
occupy all boxes (containers)."""


class Grader(ABC):
    """Base class of graders. A grader handles one kind of dataset of programming problems: it builds the
    prompts, and tests the code in completions (a model's answers)."""

    names: tuple[str, ...]
    """The values of the request's field `dataset_type` that select this grader."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs

    def id_of(self, row: Row) -> Id:
        """Returns the id of the problem `row`."""
        ident: Id = row["id"]
        return ident

    @abstractmethod
    def prompt(self, row: Row, config: TestConfig) -> Prompt:
        """Returns the prompt for the model with the problem `row`. `config` are the settings in the
        request."""

    @abstractmethod
    async def grade(self, row: Row, request: SubmitRequest) -> EvalResult:
        """Runs the tests of the problem `row` on the completion (a model's answer) in the request, and
        returns the result. Raises InfrastructureError if the server failed."""

    async def extracted(
        self, completion: str, language: str, custom_logic: str | None
    ) -> tuple[str, Kind]:
        """Extracts the code from a completion (a model's answer), and returns it and how it was found.
        `language` is preferred if there are several pieces of code. `custom_logic` is the request's own
        extraction code (or None), which runs in a box (container)."""
        custom = await self._custom(custom_logic, completion) if custom_logic else []
        return extraction.extract(completion, language, custom)

    async def _custom(self, logic: str, completion: str) -> list[CodeBlock]:
        program = files("air.serve.fusion.datasets").joinpath("extraction.py").read_text("utf-8")
        answer = await self.run(
            RunCodeRequest(
                language="python",
                code=program,
                stdin=json.dumps({"logic": logic, "completion": completion}),
                fetch_files=["blocks.json"],
            )
        )
        try:
            content = base64.b64decode(answer.files["blocks.json"])
            if len(content) > OUTPUT_BYTES:  # to read more takes many times as much memory here
                raise ValueError("too many blocks")
            return [
                CodeBlock(int(block["priority"]), str(block["language"]), str(block["code"]))
                for block in json.loads(content)
            ]
        except (KeyError, TypeError, ValueError, RecursionError):
            ran = answer.run_result
            why = (ran.stderr or "").strip().rpartition("\n")[2] if ran else ""
            raise BadRequest(
                f"custom_extract_logic failed: {why}", "custom_extract_logic", 400
            ) from None

    async def run(self, request: RunCodeRequest) -> RunCodeAnswer:
        """Runs one program in a box (container), and returns the result. Raises InfrastructureError if the
        server failed, so that this does not count as a wrong answer of the model."""
        answer = await self._programs.run(request)
        if answer.status == "SandboxError":
            raise InfrastructureError(answer.message)
        return answer

    async def run_all(self, requests: Sequence[RunCodeRequest]) -> list[RunCodeAnswer]:
        """Runs the programs of `requests`, each in a box (container) of its own, at most `AT_ONCE` at the
        same time. Returns their results in the order of `requests`."""
        return await aio.run_concurrently([self.run(each) for each in requests], at_once=AT_ONCE)
