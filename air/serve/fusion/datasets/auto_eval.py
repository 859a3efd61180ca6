"""Grader for code that is tested by a test program. The code and the test are joined to one program; the code
is accepted if this program exits with status 0."""

from __future__ import annotations

import re
import secrets
from string import Template
from typing import Any

from air.serve.fusion.datasets.extraction import without_entry_point
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
from air.serve.fusion.messages import RunCodeRequest
from air.serve.fusion.programs import BadRequest

_PLACE = "#<INSERT>"
_PACKAGE = re.compile(r"^[^\S\n]*package\s+(\w+)", re.M)
_IMPORT = re.compile(r'^[^\S\n]*import\s+((?:\w+\s+)?"[^"]+")', re.M)
_IMPORT_GROUP = re.compile(r"^[^\S\n]*import\s+\(", re.M)
"""Matches the beginning of several Go imports in parentheses."""
_WORDS = {"zh": ("问题：", "答案："), "en": ("Question:", "Answer:")}


class AutoEval(Grader):
    """Grader for problems that have a test program. A problem has the fields `id`, `content`, `labels` and
    `test`.

    `labels` has `programming_language`, and also `execution_language` if the tests run as another language,
    such as `pytest`. `test` has `code`, in which `#<INSERT>` marks the place for the completion's code, and
    `asset`, a dict of files (base64 content by path). Normally, a program that exits early with status 0 is
    accepted, too. If the request's `config.extra` has `append_flag`, a Python program must reach its last
    line.
    """

    names = ("AutoEvalDataset", "AutoEvalV4Dataset", "AutoEvalV5Dataset", "AutoEvalV6Dataset")

    def prompt(self, row: Row, config: TestConfig) -> Prompt:
        labels = unpacked(row, "labels")

        def given(name: str) -> Any:
            return config.extra.get(name, labels.get(name)) or ""

        if config.is_fewshot and not given("fewshot"):
            raise BadRequest(f"the problem {row['id']} has no fewshot", "config", 400)
        parts = {"question": row["content"], "context": given("context")}
        parts["fewshot"] = given("fewshot") if config.is_fewshot else ""
        if template := given("prompt_template"):
            text = Template(template).safe_substitute(parts, locale=config.locale or "")
        elif parts["context"] or parts["fewshot"]:
            ask, reply = _WORDS.get(config.locale or "en", _WORDS["en"])
            before = [part for part in (parts["context"], parts["fewshot"]) if part]
            text = "\n\n".join([*before, f"{ask}{row['content']}", f"{reply}\n"])
        else:
            text = row["content"]
        return Prompt(id=row["id"], prompt=text, labels=labels)

    async def grade(self, row: Row, request: SubmitRequest) -> EvalResult:
        labels, test, config = unpacked(row, "labels"), unpacked(row, "test"), request.config
        written = labels["programming_language"]
        language = labels.get("execution_language") or written
        code, kind = await self.extracted(request.completion, written, config.custom_extract_logic)
        code = without_entry_point(code, written)
        full = joined(code, test["code"], quoted=bool(config.extra.get("repr_code")))
        if language in ("go", "go_test"):
            full = one_go_file(full)
        flag = ""
        if config.extra.get("append_flag") and language == "python":
            flag = secrets.token_hex(16)
            full += f'\n\nprint("{flag}")'
        asset = unpacked(test, "asset") if test.get("asset") else {}
        answer = await self.run(
            RunCodeRequest(
                code=full,
                language=language,
                compile_timeout=config.compile_timeout or 40,
                run_timeout=config.run_timeout or 20,
                files=asset,
            )
        )
        output = (answer.run_result.stdout if answer.run_result else None) or ""
        accepted = answer.status == "Success" and flag in output
        return EvalResult(
            id=request.id,
            accepted=accepted,
            extracted_code=code,
            full_code=full,
            test_code=test["code"],
            tests=[TestCase(passed=accepted, exec_info=answer)],
            extracted_type=kind,
            extra={},
        )


def joined(code: str, test: str, *, quoted: bool) -> str:
    """Joins the code of a completion (a model's answer) and the code of its test to one program. The code
    replaces the mark `#<INSERT>` in the test, or precedes the test if there is no such mark. With `quoted`,
    the code is inserted as a Python string literal."""
    if _PLACE not in test:
        code = code.partition("if __name__ ==")[0]
        return f"{repr(code) if quoted else code}\n{test}"
    before, _, after = test.partition(_PLACE)
    return before + (repr(code) if quoted else code) + after


def one_go_file(code: str) -> str:
    """Converts Go code that was joined from several pieces to one valid file: keeps each different `package`
    clause once, and moves all imports to the top. Takes time in proportion to the length of `code`, because
    the code is a model's."""
    packages = dict.fromkeys(_PACKAGE.findall(code))
    code, groups = _without_import_groups(_PACKAGE.sub("", code))
    lines = [line.strip() for group in groups for line in group.split("\n")]
    lines += _IMPORT.findall(code)
    code = _IMPORT.sub("", code)
    imports = [f"import {line}" for line in dict.fromkeys(lines) if line]
    return "\n".join([f"package {name}" for name in packages] + imports + [code])


def _without_import_groups(code: str) -> tuple[str, list[str]]:
    """Returns Go code without its import declarations in parentheses, and the texts between these
    parentheses."""
    kept, groups, place = [], [], 0
    for start in _IMPORT_GROUP.finditer(code):
        if start.start() < place:  # it is within the previous group
            continue
        end = code.find(")", start.end())
        if end < 0:  # nor does any later group end
            break
        kept.append(code[place : start.start()])
        groups.append(code[start.end() : end])
        place = end + 1
    return "".join([*kept, code[place:]]), groups
