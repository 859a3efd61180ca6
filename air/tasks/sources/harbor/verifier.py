"""Runs a Harbor task's tests in a box (sandbox), and reads the reward that the tests wrote.

The exit status of the tests has no meaning. If the tests exceed their time limit, there is no reward, even if
they wrote a reward file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from air.errors import BoxFileError, GradingError
from air.sandbox.contract.box import Box
from air.tasks.rules import GraderResult
from air.tasks.sources.harbor import rewards
from air.tasks.sources.harbor.commands import ROOT, as_root, run_as
from air.tasks.sources.harbor.schema import User

TESTS, LOGS = "/tests", "/logs/verifier"
_REWARD_BYTES = 1_000_000
_AT_ONCE = 32
_RUN = f"{TESTS}/test.sh > {LOGS}/test-stdout.txt 2>&1"


async def prepare_logs(box: Box) -> None:
    """Creates the folders in the box (sandbox) into which Harbor's tests and agents write logs and rewards.
    Every user of the box may write into them."""
    await as_root(
        box,
        "mkdir -p /logs/agent /logs/verifier /logs/artifacts && "
        "chmod 777 /logs/agent /logs/verifier /logs/artifacts",
        what="making /logs",
    )


async def put(box: Box, files: Mapping[str, Path], folder: str, user: User = ROOT) -> None:
    """Copies files of this machine into a box (sandbox). `files` maps the path of each copy, relative to the
    box's folder `folder`, to the file. `user` owns the copies; None: the box's default user."""
    entries = list(files.items())
    for start in range(0, len(entries), _AT_ONCE):
        batch = entries[start : start + _AT_ONCE]
        await asyncio.gather(
            *(_put_file(box, f"{folder}/{name}", path, user) for name, path in batch)
        )


async def _put_file(box: Box, name: str, path: Path, user: User) -> None:
    data, mode = await asyncio.to_thread(_content, path)
    await box.write(name, data, mode=mode, user=None if user is None else str(user))


def _content(path: Path) -> tuple[bytes, int]:
    """Returns a file's content, and the permission bits for its copy, which everyone may read."""
    return path.read_bytes(), 0o755 if path.stat().st_mode & 0o100 else 0o644


async def run_tests(
    box: Box,
    *,
    user: User,
    env: Mapping[str, str],
    seconds: float,
    key: str,
    where: str,
) -> GraderResult:
    """Runs the tests in the box's folder `/tests`, for at most `seconds` seconds, and returns the rewards
    that they wrote as metrics. The task's score is the reward named `key` or, if `key` is empty, the reward
    named `reward` or the only one. Raises GradingError, whose message begins with `where`, if there is no
    valid reward."""
    await as_root(
        box, f"rm -f {LOGS}/reward.txt {LOGS}/reward.json; chmod +x {TESTS}/test.sh", what=where
    )
    result, _ = await run_as(box, ["sh", "-c", _RUN], user, timeout=seconds, env=env)
    # Programs that the agent left running must not write the reward now.
    await box.end_processes()
    if result.timed_out:
        raise GradingError(f"{where}: the tests ran past {seconds:g} s")
    if not result.began:
        raise GradingError(f"{where}: the tests did not start: {result.text.strip()[:200]}")
    try:
        found = rewards.metrics(await _rewards(box), key)
    except ValueError as error:
        raise GradingError(f"{where}: {error}; {await _last_words(box)}") from None
    return GraderResult(metrics=found, seconds=result.seconds)


async def _rewards(box: Box) -> dict[str, float]:
    for name, parse in (("reward.json", rewards.read_json), ("reward.txt", rewards.read_text)):
        try:
            await box.stat(f"{LOGS}/{name}", user=ROOT)
        except BoxFileError:
            continue
        try:
            data = await box.read(f"{LOGS}/{name}", max_bytes=_REWARD_BYTES, user=ROOT)
        except BoxFileError as error:
            raise ValueError(f"{name} cannot be read: {error}") from None
        return parse(data)
    raise ValueError(f"the tests wrote neither {LOGS}/reward.json nor {LOGS}/reward.txt")


async def _last_words(box: Box) -> str:
    """Returns text for the end of an error message about tests without a reward: a quotation of the last line
    that the tests printed, or that they printed nothing."""
    try:
        data = await box.read(f"{LOGS}/test-stdout.txt", user=ROOT)
    except BoxFileError:
        return "they printed nothing that can be read"
    lines = data.decode("utf-8", "replace").strip().splitlines()
    return f"their last line: {lines[-1][:200]}" if lines else "they printed nothing"
