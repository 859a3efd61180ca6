"""Runs commands in a Harbor task's box (sandbox) as a given user, and waits until a box is ready for the
agent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from air.errors import BoxCommandError, StagingError
from air.sandbox.contract.box import Box, Command, ExecResult
from air.tasks.sources.harbor.schema import Healthcheck, User

ROOT = "root"
_OUTPUT = 20_000
_QUICK_SECONDS = 60.0


async def run_as(
    box: Box,
    command: Command,
    user: User,
    *,
    timeout: float,  # noqa: ASYNC109 — kept by the guest, which kills the command
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> tuple[ExecResult, str]:
    """Runs a command in the box as `user` (None: the box's default user), with the environment variables
    `env`, in the folder `cwd`, for at most `timeout` seconds. Returns a pair: the result, and the end of the
    output (standard output and standard error together, at most 20,000 bytes) as text. If the command cannot
    start, the result has the exit status 126, and its field `began` is False."""
    try:
        running = await box.start(
            command, user=None if user is None else str(user), timeout=timeout, env=env, cwd=cwd
        )
    except BoxCommandError as error:  # such as an unknown user, or no room for another process
        return ExecResult(126, b"", str(error).encode(), began=False), str(error)
    output = b""
    async for _, data in running.output():
        output = (output + data)[-_OUTPUT:]
    return await running.wait(), output.decode("utf-8", "replace")


async def as_root(box: Box, script: str, *, what: str) -> None:
    """Runs a short shell script as the user root in `box` (a sandbox), and waits until it has ended. Raises
    StagingError if the script fails. `what` says what the script does, such as `clearing /logs/verifier`; the
    error's message begins with it."""
    result, output = await run_as(box, ["sh", "-c", script], ROOT, timeout=_QUICK_SECONDS)
    if result.code != 0:
        lines = output.strip().splitlines() or result.text.strip().splitlines()
        raise StagingError(
            f"{what}: exit {result.code}: {lines[-1][:300] if lines else 'no output'}"
        )


async def wait_until_healthy(box: Box, check: Healthcheck | None, user: User) -> None:
    """Repeats the task's health check until it succeeds; does nothing if `check` is None. Raises StagingError
    after `check.retries` failures; failures in the start period do not count."""
    if check is None:
        return
    began, failures, last = time.monotonic(), 0, ""
    while True:
        starting = time.monotonic() - began < check.start_period_sec
        result, output = await run_as(box, check.command, user, timeout=check.timeout_sec)
        if result.code == 0:
            return
        last = output.strip()[-200:] or f"exit {result.code}"
        failures += not starting
        if failures >= check.retries:
            raise StagingError(
                f"the health check failed {failures} times: {check.command[:80]!r}: {last}"
            )
        await asyncio.sleep(check.start_interval_sec if starting else check.interval_sec)
