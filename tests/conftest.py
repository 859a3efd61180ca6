"""Docker tests are skipped, each by name, where no box can start; under AIR_REQUIRE_DOCKER=1 a
skipped Docker test is a failure. Tests of a checkout of MLGym or prime-rl, and of vLLM, are skipped where
none is named."""

from __future__ import annotations

import ctypes
import gc
import os
import shlex
import signal
import socket
import tempfile
import threading
from collections.abc import Generator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.fork_server import FOLDER_ENV, RUN_ENV, of_this_run
from tests.processes import grace_seconds as grace_seconds
from tests.processes import nothing_left_running as nothing_left_running

SPLIT_ENV = "AIR_SPLIT_SEED"
REQUIRED = os.environ.get("AIR_REQUIRE_DOCKER") == "1"
NAMED = {
    "mlgym": ("AIR_MLGYM_ROOT", "checkout of MLGym"),
    "agentgym": ("AIR_AGENTGYM_ROOT", "checkout of AgentGym (make test-agentgym)"),
    "harbor": ("AIR_HARBOR_PYTHON", "interpreter with Harbor (make test-harbor)"),
    "openenv": ("AIR_OPENENV_PYTHON", "interpreter with openenv (make test-openenv)"),
    "trl": ("AIR_TRL_PYTHON", "interpreter with TRL (make test-trl)"),
    "vllm": ("AIR_VLLM_PYTHON", "interpreter with vLLM (make test-vllm)"),
}
"""Markers, the variable that must be set for them, and what it names."""
_NEW_HOST_NAME = 0x0400_0000
TESTS = Path(__file__).parent
DOCKER_TESTS = TESTS / "docker"
ATTACKS = TESTS / "unit" / "integrity"
FULL = os.environ.get("AIR_FULL") == "1"
LONGEST_VALUE, SHOWN = 200, 60
CRASHED = pytest.StashKey[bool]()


@cache
def docker_problem() -> str:
    """Why Docker tests cannot run here; empty where they can. The engine is asked once."""
    from air.sandbox.docker import air_images

    return air_images.why_not_ready()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fast", action="store_true", help="leave out what needs an engine, a browser or minutes"
    )
    parser.addoption(
        "--forked-workers",
        action="store_true",
        help="let the fork server start pytest-xdist's workers, so that they import nothing heavy",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The fast lane does not even import what it leaves out: that takes half of a worker's start."""
    inside = collection_path.is_relative_to(TESTS) and collection_path != TESTS
    if not config.getoption("--fast") or not inside:
        return None
    first = collection_path.relative_to(TESTS).parts[0]
    other = (TESTS / first).is_dir() and first != "unit"
    return True if other or collection_path == ATTACKS else None


def pytest_configure(config: pytest.Config) -> None:
    """Tests play on the public split, for which scores are recorded, unless they ask for another.
    Skipped tests are listed one by one, not folded into a count. Ctrl-C means the same in the background:
    a shell lets a background job ignore SIGINT, and whatever the tests start would inherit that."""
    os.environ[SPLIT_ENV] = "public"
    if (
        signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        and threading.current_thread() is threading.main_thread()
    ):
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if worker := os.environ.get("PYTEST_XDIST_WORKER"):
        _be_a_machine_of_its_own(worker)
    else:
        folder = tempfile.TemporaryDirectory(prefix="air-test-fork-")
        os.environ |= {FOLDER_ENV: folder.name, RUN_ENV: str(os.getpid())}
        config.add_cleanup(folder.cleanup)
    if hasattr(config.option, "fold_skipped"):
        config.option.fold_skipped = False


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: Sequence[Any]) -> None:
    """With `--forked-workers`, pytest-xdist starts a small program that asks the fork server for a worker."""
    if config.getoption("--forked-workers"):
        program = of_this_run().program("python")
        for spec in specs:
            spec.python = shlex.join(program)


def _be_a_machine_of_its_own(worker: str) -> None:
    """Gives this worker a host name of its own, as root can. Boxes say by it which machine their owner is on:
    so no other worker collects what this one leaves behind on purpose. The name is a loopback address, since
    programs such as torchrun wait for ever if the machine's own name leads nowhere."""
    run, number = int(os.environ[RUN_ENV]), int(worker.removeprefix("gw"))
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() == 0 and libc.unshare(_NEW_HOST_NAME) == 0:
        socket.sethostname(f"127.{run >> 8 & 255}.{run & 255}.{number + 2}")


def pytest_make_parametrize_id(val: object) -> str | None:
    """Names a test after the beginning of a long text, not after all of it: each worker of pytest-xdist sends
    the names of all tests, and a test's name with each of its reports."""
    if not isinstance(val, (str, bytes)) or len(val) <= LONGEST_VALUE:
        return None
    start = val[:SHOWN]
    text = start if isinstance(start, str) else start.decode("ascii", "backslashreplace")
    return f"{text}...{len(val)}"


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what this lane does not play; skips the tests marked `docker` where no box can start, and
    those whose program is not named."""
    left_out = {item for item in items if _is_left_out(item, fast=config.getoption("--fast"))}
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]
    for item in items:
        for marker, (variable, missing) in NAMED.items():
            if item.get_closest_marker(marker) and not os.environ.get(variable):
                item.add_marker(pytest.mark.skip(reason=f"{variable} names no {missing}"))
        if item.get_closest_marker("primerl") and find_spec("prime_rl") is None:
            item.add_marker(pytest.mark.skip(reason="runs by make test-primerl PRIME_RL=DIR"))
    _group(items)
    marked = [item for item in items if item.get_closest_marker("docker")]
    if marked and (problem := docker_problem()):
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=f"Docker: {problem}"))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Tells the garbage collector that the modules and tests live until the end. It would look at all of
    them, again and again, in each worker. Rarer collections saved 6 % of the CPU time of 482 tests."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@cache
def _place(path: Path) -> tuple[str, ...]:
    """The parts of a test file's path below the folder `tests`."""
    return path.relative_to(TESTS).parts


def _is_left_out(item: pytest.Item, *, fast: bool) -> bool:
    if item.get_closest_marker("full") and not FULL:
        return True
    if _place(item.path)[0] != "unit":
        return fast
    return fast and any(item.get_closest_marker(name) for name in ("docker", "slow"))


def _group(items: list[pytest.Item]) -> None:
    """Says which tests one worker of pytest-xdist plays, and in which order they begin.

    Tests that share something made for one file, or the one private engine, stay together. These
    groups begin first, since the last of them to end decides how long the whole takes.
    """
    ranks: dict[str, tuple[int, int]] = {}
    for item in items:
        name = ""
        fixtures = getattr(item, "_fixtureinfo", None)
        definitions = fixtures.name2fixturedefs if fixtures is not None else {}
        if "_engine" in definitions:
            name = "private engine"
        elif any(defs[-1].scope == "module" for defs in definitions.values()):
            name = "/".join(_place(item.path))
        own = item.get_closest_marker("xdist_group")
        if name and own is None:
            item.add_marker(pytest.mark.xdist_group(name))
        name = name or (own.args[0] if own else "")
        kind = _place(item.path)[0]
        ranks[item.nodeid] = (
            0 if name else 1,
            ("e2e", "docker").index(kind) if kind in ("e2e", "docker") else 2,
        )
    items.sort(key=lambda item: ranks[item.nodeid])


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


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """A worker that crashed leaves tests unplayed, so playing the failed ones again would show too little."""
    if error is not None:
        node.config.stash[CRASHED] = True


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Lists the tests that failed in the file that `.ci/tests` names, without their groups."""
    path = os.environ.get("AIR_FAILED_FILE")
    worker = "PYTEST_XDIST_WORKER" in os.environ
    if path and not worker and not config.stash.get(CRASHED, False):
        reports = [*terminalreporter.getreports("failed"), *terminalreporter.getreports("error")]
        names = dict.fromkeys(_without_group(report.nodeid) for report in reports)
        Path(path).write_text("".join(f"{name}\n" for name in names), encoding="utf-8")


def _without_group(nodeid: str) -> str:
    """A test's name without what pytest-xdist appends: `file::test[case]@group`."""
    return nodeid.rpartition("@")[0] if nodeid.rfind("@") > nodeid.rfind("]") else nodeid


def _require(report: pytest.TestReport | pytest.CollectReport) -> None:
    if REQUIRED and report.skipped and not hasattr(report, "wasxfail"):
        where = report.longrepr
        reason = where[2] if isinstance(where, tuple) else where
        report.outcome = "failed"
        report.longrepr = f"AIR_REQUIRE_DOCKER=1, yet this test was skipped: {reason}"
