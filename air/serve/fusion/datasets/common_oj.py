"""Grader for programs that read standard input and write standard output, as in online judges (sites for
programming contests)."""

from __future__ import annotations

from typing import Any

from air.serve.fusion.datasets.grader import Grader
from air.serve.fusion.datasets.messages import (
    EvalResult,
    Prompt,
    Row,
    SubmitRequest,
    TestCase,
    TestConfig,
    unpacked,
)
from air.serve.fusion.languages import LANGUAGES
from air.serve.fusion.messages import RunCodeAnswer, RunCodeRequest
from air.serve.fusion.programs import BadRequest

RELATIVE = 1e-5
SHOWN = 1000
_TASK = {
    "en": "Write a complete program in {language}. It reads its input from standard input and writes its "
    "result to standard output.",
    "zh": "请用 {language} 编写一个完整的程序，从标准输入读取数据，并将结果写到标准输出。",
}


class CommonOJ(Grader):
    """Grader for problems of online judges. A problem has the fields `id`, `content`, `labels` and `test`: a
    list of `{"input": {"stdin": …}, "output": {"stdout": …}}`.

    The tests run in batches of four, until a test in a batch has failed. The result contains the tests up to
    the first failed one. If the request's `config.extra` has `run_all_cases`, all tests run, and the result
    contains all.
    """

    names = ("CommonOJDataset",)

    def prompt(self, row: Row, config: TestConfig) -> Prompt:
        task = _TASK.get(config.locale or "en", _TASK["en"]).format(language=config.language or "")
        return Prompt(
            id=row["id"], prompt=f"{row['content']}\n\n{task}", labels=unpacked(row, "labels")
        )

    async def grade(self, row: Row, request: SubmitRequest) -> EvalResult:
        config = request.config
        if not config.language:
            raise BadRequest("config.language is needed to grade a program", "config", 400)
        code, kind = await self.extracted(
            request.completion, config.language, config.custom_extract_logic
        )
        cases: list[dict[str, Any]] = unpacked(row, "test")
        compiled = (
            bool(LANGUAGES[config.language].compile) if config.language in LANGUAGES else False
        )
        programs = [
            RunCodeRequest(
                code=code,
                language=config.language,
                stdin=case["input"]["stdin"],
                compile_timeout=config.compile_timeout or 10,
                run_timeout=config.run_timeout or (10 if compiled else 20),
            )
            for case in cases
        ]
        tests = []
        step = len(programs) if config.extra.get("run_all_cases") else 4
        for start in range(0, len(programs), max(1, step)):
            answers = await self.run_all(programs[start : start + step])
            tests += [
                _tested(answer, case, whole=bool(config.extra.get("return_full_case")))
                for answer, case in zip(answers, cases[start : start + step], strict=True)
            ]
            if not config.extra.get("run_all_cases") and not all(test.passed for test in tests):
                first = next(n for n, test in enumerate(tests) if not test.passed)
                tests = tests[: first + 1]
                break
        return EvalResult(
            id=request.id,
            accepted=all(test.passed for test in tests),
            extracted_code=code,
            tests=tests,
            extracted_type=kind,
        )


def _tested(answer: RunCodeAnswer, case: dict[str, Any], *, whole: bool) -> TestCase:
    output = answer.run_result.stdout if answer.run_result else None
    passed = answer.status == "Success" and equal(output or "", case["output"]["stdout"])
    if not whole:
        case = {
            side: {name: _short(text) for name, text in case[side].items()}
            for side in ("input", "output")
        }
    return TestCase(passed=passed, exec_info=answer, test_info=case)


def _short(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]} [{len(text) - SHOWN} characters cut]"


def equal(output: str, expected: str) -> bool:
    """Returns whether two outputs have the same lines, ignoring upper and lower case, spaces at the beginning
    and the end of lines, and blank lines at the beginning and the end. Two lines that are numbers are the
    same if the numbers' relative difference is below `RELATIVE` (1e-5)."""
    lines, wanted = (text.strip().lower().split("\n") for text in (output, expected))
    pairs = zip(lines, wanted, strict=False)
    return len(lines) == len(wanted) and all(_same(a.strip(), b.strip()) for a, b in pairs)


def _same(line: str, wanted: str) -> bool:
    if line == wanted:
        return True
    try:
        number, target = float(line), float(wanted)
    except ValueError:
        return False
    return abs(number - target) / max(abs(target), 1e-10) < RELATIVE
