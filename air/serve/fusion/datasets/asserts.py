"""Graders for Python code that is tested by assertions, for problems in the formats of the datasets MBPP and
HumanEval.

After the assertions, the tested program prints a random secret. A completion (a model's answer) passes only
if the secret is in the output, so a program that exits before the assertions fails.
"""

from __future__ import annotations

import re
import secrets

from air.serve.fusion.datasets.extraction import Kind, without_entry_point
from air.serve.fusion.datasets.grader import Grader
from air.serve.fusion.datasets.messages import (
    EvalResult,
    Id,
    Prompt,
    Row,
    SubmitRequest,
    TestCase,
    TestConfig,
    unpacked,
)
from air.serve.fusion.messages import RunCodeRequest

_TASK = (
    "Write a Python function for this task, in a fenced code block: {content} "
    "It must pass these tests:\n\n"
)
_IMPORTS = """import collections, copy, datetime, functools, hashlib, heapq
import itertools, math, re, statistics, string, sys
from collections import *
from typing import *
try:
    import numpy, numpy as np
except Exception:
    pass
"""
"""The imports at the beginning of each program for a problem of HumanEval. SandboxFusion adds the same ones,
so a completion (a model's answer) may use these modules without importing them. Any error while numpy is
imported is ignored, as in SandboxFusion; then the name `numpy` is not defined."""
_END_OF_FUNCTION = re.compile(r"\n(?=[^\s\])}#'\"])")
"""Matches the line break before the first line that begins a new statement without indentation, where a
function ends. Closing brackets, comments and the end of a string may be at the beginning of a line inside a
function."""
_FUTURE = re.compile(r"^from __future__ import .*$", re.MULTILINE)
"""Matches the lines `from __future__ import …`, which Python accepts only at the beginning of a program."""


class _Asserts(Grader):
    async def _graded(
        self, request: SubmitRequest, code: str, kind: Kind | None, tests: str, imports: str = ""
    ) -> EvalResult:
        """Runs `imports`, the completion's `code` and `tests` as one program, and returns the grading result:
        the completion (a model's answer) is accepted if the program reached its end without an error. `kind`
        says how the code was found in the completion."""
        mark = secrets.token_hex(16)
        if imports:
            imports = "\n".join([*_FUTURE.findall(code), imports])
            code = _FUTURE.sub("", code)
        full = f'{imports}{code}\n\n{tests}\n\nprint("{mark}")\n'
        answer = await self.run(
            RunCodeRequest(
                code=full, language="python", run_timeout=request.config.run_timeout or 20
            )
        )
        output = (answer.run_result.stdout if answer.run_result else None) or ""
        accepted = answer.status == "Success" and mark in output
        return EvalResult(
            id=request.id,
            accepted=accepted,
            extracted_code=code,
            full_code=full,
            test_code=tests,
            tests=[TestCase(passed=accepted, exec_info=answer)],
            extracted_type=kind,
        )


class Mbpp(_Asserts):
    """Grader for problems in the format of the dataset MBPP. A problem has the fields `id`, `content`,
    `test_list` (a list of assertions) and `labels`, whose `test_setup_code` is code that runs before the
    completion's code."""

    names = ("MBPPDataset", "AssertDataset")

    def prompt(self, row: Row, config: TestConfig) -> Prompt:
        tests = "\n".join(unpacked(row, "test_list"))
        text = _TASK.format(content=row["content"]) + tests
        return Prompt(id=row["id"], prompt=text, labels=unpacked(row, "labels"))

    async def grade(self, row: Row, request: SubmitRequest) -> EvalResult:
        completion = request.completion.partition("[DONE]")[0]
        code, kind = await self.extracted(completion, "python", request.config.custom_extract_logic)
        setup = unpacked(row, "labels").get("test_setup_code") or ""
        code = "\n".join(part for part in (setup, without_entry_point(code, "python")) if part)
        return await self._graded(request, code, kind, "\n".join(unpacked(row, "test_list")))


class HumanEval(_Asserts):
    """Grader for problems in the format of the dataset HumanEval. A problem has the fields `task_id`,
    `prompt` (the beginning of a function), `entry_point` (the function's name) and `test`, code that defines
    `check(candidate)`. The completion continues the code of the prompt; it is used up to the first statement
    that is not indented. If the request's `config.extra` has `is_freeform`, the completion instead has the
    whole function in a code fence."""

    names = ("HumanEvalDataset",)

    def id_of(self, row: Row) -> Id:
        ident: Id = row["task_id"]
        return ident

    def prompt(self, row: Row, config: TestConfig) -> Prompt:
        text = row["prompt"]
        if config.extra.get("is_freeform"):
            text = (
                f"```python\n{text}\n```\n\nComplete this function as its docstring says. Write the "
                "whole function in a fenced code block, without a main program."
            )
        labels = {name: value for name, value in row.items() if name != "prompt"}
        return Prompt(id=row["task_id"], prompt=text, labels=labels)

    async def grade(self, row: Row, request: SubmitRequest) -> EvalResult:
        code: str = row["prompt"] + _END_OF_FUNCTION.split(request.completion, maxsplit=1)[0]
        kind: Kind | None = None
        if request.config.extra.get("is_freeform"):
            code, kind = await self.extracted(
                request.completion, "python", request.config.custom_extract_logic
            )
            # The function may need the imports of the prompt.
            imports = [
                line for line in row["prompt"].split("\n") if line.startswith(("import ", "from "))
            ]
            code = "\n".join([*imports, without_entry_point(code, "python")])
        tests = f"{row['test']}\n\ncheck({row['entry_point']})"
        return await self._graded(request, code, kind, tests, _IMPORTS)
