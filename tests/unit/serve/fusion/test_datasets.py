"""SandboxFusion's datasets: how code is found in a completion, how outputs are compared, how code and tests
are joined, and how faulty requests are refused."""

from __future__ import annotations

from typing import Any

import pytest

from air.serve.fusion.datasets.auto_eval import AutoEval, joined, one_go_file
from air.serve.fusion.datasets.common_oj import CommonOJ, equal
from air.serve.fusion.datasets.extraction import extract, without_entry_point
from air.serve.fusion.datasets.messages import SubmitRequest, TestConfig
from air.serve.fusion.messages import CommandResult, RunCodeAnswer, RunCodeRequest
from tests.unit.serve.test_admission import serving


@pytest.mark.parametrize(
    ("output", "expected", "same"),
    [
        ("3\n", "3", True),
        ("  Yes \n\tNO\n\n", "yes\nno", True),
        ("1.000009", "1", True),
        ("1.00002", "1", False),
        ("100000.9", "100000", True),
        ("1e5", "100000", True),
        ("0.00001", "0", False),
        ("1 2", "1  2", False),
        ("1.0 2", "1 2", False),
        ("1\n2", "1", False),
        ("1\n\n2", "1\n2", False),
        ("nan", "1", False),
        ("nan", "nan", True),
        ("inf", "1", False),
        ("", "", True),
        ("", "0", False),
    ],
)
def test_outputs_are_compared_by_line_without_case_and_with_a_tolerance(
    output: str, expected: str, same: bool
) -> None:
    assert equal(output, expected) is same


@pytest.mark.parametrize(
    ("code", "test", "quoted", "program"),
    [
        ("a", "b", False, "a\nb"),
        ("a", "x #<INSERT> y", False, "x a y"),
        ("a'", "x = #<INSERT>", True, 'x = "a\'"'),
        ("a\nif __name__ == 1: b", "c", False, "a\n\nc"),
        ("a\nif __name__ == 1: b", "#<INSERT>", False, "a\nif __name__ == 1: b"),
        ("a", "b", True, "'a'\nb"),
        ("a", "#<INSERT> #<INSERT>", False, "a #<INSERT>"),
    ],
)
def test_code_replaces_the_mark_of_its_test_or_precedes_it(
    code: str, test: str, quoted: bool, program: str
) -> None:
    assert joined(code, test, quoted=quoted) == program


def test_a_go_file_has_its_package_once_and_its_imports_first() -> None:
    parts = (
        'package main\nimport (\n\t"fmt"\n\tm "math"\n)\nfunc f() {}',
        'package main\nimport "fmt"\nimport "os"\nfunc g() {}',
    )
    lines = [line for line in one_go_file("\n".join(parts)).split("\n") if line.strip()]
    imports = ['import "fmt"', 'import m "math"', 'import "os"']
    assert lines == ["package main", *imports, "func f() {}", "func g() {}"]


@pytest.mark.parametrize(
    ("completion", "language", "code", "kind"),
    [
        ("```python\na\n```", "python", "a", "fenced"),
        ("```\na\n```\n```py\nb\n```", "python", "b", "fenced"),
        ("```js\na\n```\n```C++\nb\n```", "cpp", "b", "fenced"),
        ("```js\na\n```\n```ts\nb\n```", "python", "a", "fenced"),
        ("```py\na\n```\n```py\nb", "python", "a", "fenced"),
        ("text\n```py\na\nb", "python", "a\nb", "incomplete_fenced"),
        ("So:\ndef f():\n    return 1\nDone.", "python", "def f():\n    return 1", "heuristic"),
        ("ls -l", "bash", "ls -l", "heuristic"),
        ("Try:\nSELECT 1;", "sql", "SELECT 1", "heuristic"),
        ("No code.", "python", "", "empty"),
        ("int main() {}", "cpp", "", "empty"),
    ],
)
def test_code_is_found_in_a_completion(
    completion: str, language: str, code: str, kind: str
) -> None:
    assert extract(completion, language, []) == (code, kind)


@pytest.mark.parametrize(
    ("code", "language", "kept"),
    [
        ('a\nif __name__ == "__main__":\n    b', "python", "a\n"),
        ("a\nint main() { b }", "cpp", "a\n"),
        ("package main\na", "go", "\na"),
        ("a\n# Example usage\nb", "python", "a\n"),
        ("a\nint main() { b }", "c", "a\nint main() { b }"),
    ],
)
def test_tests_can_be_appended_to_code_without_its_main_program(
    code: str, language: str, kept: str
) -> None:
    assert without_entry_point(code, language) == kept


class Echoes:
    """Programs of which each writes its own standard input."""

    def __init__(self) -> None:
        self.ran: list[RunCodeRequest] = []

    async def run(self, request: RunCodeRequest) -> RunCodeAnswer:
        self.ran.append(request)
        result = CommandResult(status="Finished", return_code=0, stdout=request.stdin or "")
        return RunCodeAnswer(status="Success", run_result=result)


def submission(row: dict[str, Any], **config: Any) -> SubmitRequest:
    return SubmitRequest(
        dataset="any",
        id=1,
        completion="```python\na\n```",
        config=TestConfig(provided_data=row, **config),
    )


@pytest.mark.parametrize(("extra", "passed"), [({}, 3), ({"run_all_cases": True}, 9)])
async def test_the_tests_end_at_the_first_failure_unless_all_are_wanted(
    extra: dict[str, Any], passed: int
) -> None:
    cases = [{"input": {"stdin": str(n)}, "output": {"stdout": str(n)}} for n in range(10)]
    cases[3]["output"]["stdout"] = "wrong"
    row = {"id": 1, "content": "", "labels": {}, "test": cases}
    programs = Echoes()
    grader = CommonOJ(programs)  # type: ignore[arg-type]
    result = await grader.grade(row, submission(row, language="python", extra=extra))
    tests = [test.passed for test in result.tests]
    assert (result.accepted, sum(tests), tests[3]) == (False, passed, False)
    assert (len(tests), len(programs.ran)) == ((10, 10) if extra else (4, 4))


@pytest.mark.parametrize(
    ("labels", "language"),
    [
        ({"programming_language": "python"}, "python"),
        ({"programming_language": "python", "execution_language": "pytest"}, "pytest"),
    ],
)
async def test_tests_run_in_their_own_language(labels: dict[str, str], language: str) -> None:
    row = {"id": 1, "content": "", "labels": labels, "test": {"code": "#<INSERT>\nb"}}
    programs = Echoes()
    await AutoEval(programs).grade(row, submission(row))  # type: ignore[arg-type]
    assert [(each.language, each.code) for each in programs.ran] == [(language, "a\nb")]


NAMED = ("/list_ids", "/get_prompts", "/get_prompt_by_id", "/submit", "/get_metrics")


async def test_a_dataset_that_nobody_registered_needs_its_type() -> None:
    body = {"dataset": "none", "config": {}, "id": 1, "completion": "", "results": []}
    async with serving("sandbox") as client:
        for path in (*NAMED, "/get_metrics_function"):
            answer = await client.post(path, json=body)
            assert answer.status_code == 400, (path, answer.text)
            assert answer.json() == {"detail": "no eval class found for dataset none"}


PROBLEM = {"id": 1, "content": "", "labels": {}}
BAD = [
    ("CommonOJDataset", {}),
    ("CommonOJDataset", {**PROBLEM, "test": [{"input": {}}]}),
    ("CommonOJDataset", {**PROBLEM, "test": "{"}),
    ("CommonOJDataset", {**PROBLEM, "test": 7}),
    ("AutoEvalDataset", {**PROBLEM, "test": {"code": ""}}),
    ("AutoEvalDataset", {**PROBLEM, "labels": [], "test": {"code": ""}}),
    ("MBPPDataset", PROBLEM),
    ("HumanEvalDataset", {"task_id": 1}),
]


async def test_a_row_that_does_not_fit_its_grader_is_a_fault_of_the_request() -> None:
    async with serving("sandbox") as client:
        for grader, row in BAD:
            config = {"dataset_type": grader, "language": "python", "provided_data": row}
            body = {"dataset": "any", "id": 1, "completion": "```python\na\n```", "config": config}
            answer = await client.post("/submit", json=body)
            assert answer.status_code == 400, (row, answer.text)
            assert "does not fit its grader" in answer.json()["detail"]
