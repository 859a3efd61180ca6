"""Conformance checks (tests in a real box) of `Box.snapshot` and `Box.restore`.

A fork is a box that starts from a snapshot (the frozen workspace of another box). The checks test that a fork
has exactly the frozen files, and never sees what other boxes write.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from air.errors import BoxDiedError
from air.sandbox import open_box
from air.sandbox.conformance.check import Checks, Unmet, expect, line, refused, same, sh
from air.sandbox.contract.box import Box, Snapshot

CHECKS = Checks()
_SHOW = r"find . -mindepth 1 -printf '%y %m %u %l %P\0' | sort -z | tr '\0' '|'"


@asynccontextmanager
async def _fork(box: Box, snapshot: Snapshot) -> AsyncIterator[Box]:
    """Async context manager: opens a second box with the settings of `box`, restores the snapshot in it, and
    yields the second box."""
    async with await open_box(box.spec) as fork:
        await fork.restore(snapshot)
        yield fork


@CHECKS.add()
async def a_fork_starts_with_all_that_was_frozen(box: Box) -> None:
    await sh(box, "mkdir -p a/b empty; echo one > a/b/c; echo run > x; chmod 750 x; umask 077")
    await sh(box, "ln -s a/b/c link; ln a/b/c hard; mkfifo pipe; touch $'new\\nline' .hidden")
    await sh(box, "ln -s /nowhere broken; head -c 3M /dev/urandom > big; chmod 700 a")
    listing, digest = await line(box, _SHOW), await line(box, "sha256sum big")
    async with await box.snapshot() as snapshot, _fork(box, snapshot) as fork:
        same(await line(fork, _SHOW), listing)
        same(await line(fork, "sha256sum big"), digest)
        same(await line(fork, "cat link hard"), "one\none")
        same(await fork.read("a/b/c"), b"one\n")


@CHECKS.add()
async def forks_never_see_each_others_writes(box: Box) -> None:
    await sh(box, "mkdir -p d/e; echo same > d/e/f; echo gone > g; echo moved > m; ln m hard")
    async with await box.snapshot() as snapshot:
        async with _fork(box, snapshot) as one, _fork(box, snapshot) as two:
            await sh(one, "echo more >> d/e/f; rm g; mv d n; mkdir d; echo new > d/x; chmod 600 m")
            await two.write("d/e/f", b"two")
            same(await line(one, "cat n/e/f; ls -A; ls -A d"), "same\nmore\nd\nhard\nm\nn\nx")
            same(await line(two, "cat d/e/f; ls -A; ls -A d"), "twod\ng\nhard\nm\ne")
            same(await two.read("g"), b"gone\n")
        async with _fork(box, snapshot) as three:
            same(await line(three, "cat d/e/f g m; stat -c %a m"), "same\ngone\nmoved\n644")


@CHECKS.add()
async def snapshots_nest(box: Box) -> None:
    await sh(box, "echo 0 > log; echo keep > kept; mkdir d; echo 0 > d/0")
    snapshot = await box.snapshot()
    try:
        for depth in range(1, 6):
            async with _fork(box, snapshot) as fork:
                await sh(fork, f"echo {depth} >> log; rm -r d; mkdir d; echo {depth} > d/{depth}")
                older, snapshot = snapshot, await fork.snapshot()
            await older.close()
        async with _fork(box, snapshot) as last:
            same(await line(last, "cat log | tr -d '\\n'; cat kept; ls d"), "012345keep\n5")
    finally:
        await snapshot.close()


@CHECKS.add()
async def nothing_writes_after_the_freeze(box: Box) -> None:
    write = "while true; do echo x >> log; done"
    await sh(box, f"(setsid bash -c '{write}' > /dev/null 2>&1 &); until [ -s log ]; do :; done")
    async with await box.snapshot() as snapshot:
        try:
            await box.exec("true", timeout=60)
        except BoxDiedError:
            pass
        else:
            raise Unmet("a frozen box runs commands")
        async with _fork(box, snapshot) as one:
            size = await line(one, "stat -c %s log")
        async with _fork(box, snapshot) as two:
            same(await line(two, "stat -c %s log"), size)


@CHECKS.add()
async def a_fork_outlives_its_snapshot(box: Box) -> None:
    await box.write("a", b"kept")
    snapshot = await box.snapshot()
    async with _fork(box, snapshot) as fork:
        await snapshot.close()
        await snapshot.close()
        same(await fork.read("a"), b"kept")
        await sh(fork, "echo b > b")
        async with await fork.snapshot() as again, _fork(box, again) as child:
            same(await line(child, "cat a b"), "keptb")
    async with await open_box(box.spec) as late:
        try:
            await late.restore(snapshot)
        except BoxDiedError:
            return
        raise Unmet("a box started from a snapshot that is closed")


@CHECKS.add(container=True, disk_mb=8)
async def a_forks_own_writes_are_bounded(box: Box) -> None:
    await sh(box, "head -c 6M /dev/zero > old")
    async with await box.snapshot() as snapshot, _fork(box, snapshot) as fork:
        await fork.exec("cat /dev/zero > new", timeout=60)
        expect(int(await line(fork, "stat -c %s new")) <= 8 << 20, "more than its disk")
        with refused("No space left"):
            await fork.write("newer", b"x" * 100_000)
        same(await line(fork, "stat -c %s old"), str(6 << 20))
