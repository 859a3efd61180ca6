"""Docker tests are skipped, each by name, where no box can start; under AIR_REQUIRE_DOCKER=1 a
skipped Docker test is a failure. Tests of a checkout of MLGym or prime-rl, and of vLLM, are skipped where
none is named."""

from __future__ import annotations

import os
from collections.abc import Generator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

REQUIRED = os.environ.get("AIR_REQUIRE_DOCKER") == "1"
NAMED = {
    "mlgym": ("AIR_MLGYM_ROOT", "checkout of MLGym"),
    "vllm": ("AIR_VLLM_PYTHON", "interpreter with vLLM (make test-vllm)"),
}
"""Markers, the variable that must be set for them, and what it names."""
DOCKER_TESTS = Path(__file__).parent / "docker"


@cache
def docker_problem() -> str:
    """Why Docker tests cannot run here; empty where they can. The engine is asked once."""
    from air.sandbox.docker import images

    return images.unready()


def pytest_configure(config: pytest.Config) -> None:
    """Skipped tests are listed one by one, not folded into a count."""
    if hasattr(config.option, "fold_skipped"):
        config.option.fold_skipped = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips the tests marked `docker` where no box can start, and those whose program is not named."""
    for item in items:
        for marker, (variable, missing) in NAMED.items():
            if item.get_closest_marker(marker) and not os.environ.get(variable):
                item.add_marker(pytest.mark.skip(reason=f"{variable} names no {missing}"))
        if item.get_closest_marker("primerl") and find_spec("prime_rl") is None:
            item.add_marker(pytest.mark.skip(reason="runs by make test-primerl PRIME_RL=DIR"))
    marked = [item for item in items if item.get_closest_marker("docker")]
    if marked and (problem := docker_problem()):
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=f"Docker: {problem}"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where Docker is required, a Docker test that is skipped, for any reason, fails."""
    report = yield
    if item.get_closest_marker("docker"):
        _require(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Likewise for a whole file of Docker tests that is skipped while it is read."""
    report = yield
    if DOCKER_TESTS in collector.path.parents:
        _require(report)
    return report


def _require(report: pytest.TestReport | pytest.CollectReport) -> None:
    if REQUIRED and report.skipped and not hasattr(report, "wasxfail"):
        where = report.longrepr
        reason = where[2] if isinstance(where, tuple) else where
        report.outcome = "failed"
        report.longrepr = f"AIR_REQUIRE_DOCKER=1, yet this test was skipped: {reason}"
