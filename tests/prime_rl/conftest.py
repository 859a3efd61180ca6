"""What the tests with a checkout of prime-rl share; `make test-primerl PRIME_RL=DIR` runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.prime_rl.chain import Served, vllm
from tests.prime_rl.policy import make

REPORT = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small policy that knows the tasks' format."""
    return make(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="session")
def served(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A real vLLM that serves it."""
    with vllm(policy, tmp_path_factory.mktemp("vllm")) as server:
        yield server


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Takes a line for the report at the end."""
    lines = request.config.stash.setdefault(REPORT, [])
    return lines.append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints the report, a line for each thing that was seen."""
    lines = terminalreporter.config.stash.get(REPORT, [])
    if lines:
        import verifiers

        terminalreporter.section(f"prime-rl with verifiers {verifiers.__version__}")
        for line in sorted(lines):
            terminalreporter.write_line(line)
