"""The image `air-code`: every language that it should have."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.docker.serve.serving import Served, serving

# Not marked `docker`: where Docker is required, this image of 2 GB is still not.
pytestmark = pytest.mark.full
DOUBLE = {
    "python": "print(2 * int(input()))",
    "bash": "read n; echo $((2 * n))",
    "c": '#include <stdio.h>\nint main() { int n; scanf("%d", &n); printf("%d\\n", 2 * n); return 0; }',
    "cpp": "#include <iostream>\nint main() { int n; std::cin >> n; std::cout << 2 * n << std::endl; }",
    "go": 'package main\nimport "fmt"\nfunc main() { var n int; fmt.Scan(&n); fmt.Println(2 * n) }',
    "java": (
        "import java.util.Scanner;\npublic class Main { public static void main(String[] a) {"
        " System.out.println(2 * new Scanner(System.in).nextInt()); } }"
    ),
    "nodejs": "console.log(2 * parseInt(require('fs').readFileSync(0, 'utf8')))",
    "typescript": (
        "import * as fs from 'fs'; const n: number = parseInt(fs.readFileSync(0, 'utf8'));\n"
        "console.log(2 * n)"
    ),
    "rust": (
        "fn main() { let mut s = String::new(); std::io::stdin().read_line(&mut s).unwrap();"
        ' println!("{}", 2 * s.trim().parse::<i32>().unwrap()); }'
    ),
    "lua": "print(math.tointeger(2 * io.read('n')))",
    "perl": 'my $n = <STDIN>; print 2 * $n, "\\n";',
    "php": 'echo 2 * intval(fgets(STDIN)), "\\n";',
    "ruby": "puts 2 * gets.to_i",
}
"""A program in each language that reads a number from its standard input and writes twice the number."""
OTHERS = {
    "pytest": ("def test_sum():\n    assert 20 + 22 == 42\n", "1 passed"),
    "go_test": (
        'package main\nimport "testing"\nfunc TestSum(t *testing.T) { if 20+22 != 42 { t.Fail() } }',
        "ok",
    ),
    "sql": ("select 20 + 22;", "42"),
}
"""Languages whose programs read nothing: a program, and a text in its output."""
SECONDS = 300


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    from air.sandbox.docker import air_images

    if reason := air_images.why_not_ready("air-code"):
        pytest.skip(f"{reason}: air images build code")
    with serving("--max-boxes", "2", "--queue-seconds", "600", image="air-code") as served:
        yield served


def run(server: Served, language: str, code: str, **more: Any) -> dict[str, Any]:
    limits = {"compile_timeout": SECONDS, "run_timeout": SECONDS}
    body = {"language": language, "code": code} | limits | more
    answer = httpx.post(f"{server.url}/run_code", json=body, timeout=1500)
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


def test_every_language_is_tested(server: Served) -> None:
    fusion = httpx.get(f"{server.url}/health").json()["sandboxfusion"]
    assert set(fusion["languages"]) == {*DOUBLE, *OTHERS}
    assert fusion["jupyter"] is True


@pytest.mark.parametrize("language", DOUBLE)
def test_a_language_reads_and_writes(server: Served, language: str) -> None:
    answer = run(server, language, DOUBLE[language], stdin="21\n")
    assert answer["status"] == "Success", answer
    assert answer["run_result"]["stdout"] == "42\n"
    compiled = language in {"c", "cpp", "go", "java", "rust"}
    assert (answer["compile_result"] is not None) is compiled


@pytest.mark.parametrize("language", OTHERS)
def test_a_language_without_input(server: Served, language: str) -> None:
    code, text = OTHERS[language]
    answer = run(server, language, code)
    assert answer["status"] == "Success", answer
    assert text in answer["run_result"]["stdout"]


def test_a_program_that_does_not_compile_does_not_run(server: Served) -> None:
    answer = run(server, "cpp", "int main() { return x; }")
    assert answer["status"] == "Failed"
    assert answer["compile_result"]["return_code"] == 1
    assert "was not declared" in answer["compile_result"]["stderr"]
    assert answer["run_result"] is None


def test_a_query_that_fails_is_no_success(server: Served) -> None:
    answer = run(server, "sql", "select a from nowhere;")
    assert answer["status"] == "Failed"
    assert "no such table" in answer["run_result"]["stderr"]


def test_verls_reward_runs_unchanged(server: Served) -> None:
    """`AIR_VERL_ROOT` names a checkout of verl: `make test-serve VERL=DIR`."""
    if not (root := os.environ.get("AIR_VERL_ROOT")):
        pytest.skip("AIR_VERL_ROOT names no checkout of verl")
    folder = Path(root) / "verl/utils/reward_score/sandbox_fusion"
    spec = importlib.util.spec_from_file_location(
        "verl_sandbox_fusion", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    verl = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = verl
    spec.loader.exec_module(verl)
    cases = {"inputs": ["1 2", "3 4"], "outputs": ["3", "7"]}

    def score(code: str) -> float:
        text = f"```python\n{code}\n```"
        limits = {"timeout": 60, "memory_limit_mb": 1024, "concurrent_semaphore": None}
        value, _ = verl.compute_score(
            f"{server.url}/run_code", completion=text, test_cases=cases, **limits
        )
        return float(value)

    assert score("print(sum(map(int, input().split())))") == 1.0
    assert score("print(3)") == 0.5
    assert score("1 / 0") == 0.0
