"""Plays conformance checks in process boxes of an ordinary user, begun by root: `other_user.py UID EVERY`
plays each EVERY-th check, 1 for all, and in any case those of what commands can do to the guest, since here
both are the same user.

In a mount namespace of its own, the folders that only root may pass through on the way to this Python
and to `air` are opened, so that the other user finds both.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import subprocess
import sys
import tempfile
from pathlib import Path

NEW_MOUNTS = 0x0002_0000
AT_ONCE = 3


def open_up(wanted: list[Path]) -> None:
    """Makes each of `wanted` reachable for everybody."""
    if ctypes.CDLL(None, use_errno=True).unshare(NEW_MOUNTS):
        raise OSError(ctypes.get_errno(), "unshare")
    mount("--make-rprivate", "/")
    for closed in sorted({above for path in wanted if (above := closed_above(path))}):
        inner = [path for path in wanted if path.is_relative_to(closed)]
        with tempfile.TemporaryDirectory() as name:
            for index, path in enumerate(inner):
                (Path(name) / str(index)).mkdir()
                mount("--bind", str(path), f"{name}/{index}")
            mount("-t", "tmpfs", "-o", "mode=755", "none", str(closed))
            for index, path in enumerate(inner):
                path.mkdir(parents=True, exist_ok=True)
                mount("--bind", f"{name}/{index}", str(path))
                subprocess.run(["umount", f"{name}/{index}"], check=True)


def closed_above(path: Path) -> Path | None:
    """The uppermost folder on the way to `path` through which others may not pass."""
    return next((a for a in reversed(path.parents) if not a.stat().st_mode & 1), None)


def mount(*args: str) -> None:
    subprocess.run(["mount", *args], check=True)


async def play(every: int) -> int:
    """Plays each `every`-th check that is not known to fail, and those of the guest; returns how many
    failed."""
    from air.errors import AirError
    from air.sandbox import conformance
    from air.sandbox.contract.box import BoxSpec
    from air.sandbox.process import box as process

    print(process.namespaces(), flush=True)
    gaps, gate = conformance.KNOWN_GAPS["process/user"], asyncio.Semaphore(AT_ONCE)

    async def one(check: conformance.Check) -> bool:
        async with gate:
            try:
                run = conformance.run(check, BoxSpec(provider="process"))
                await asyncio.wait_for(run, 180)
            except (AirError, conformance.Unmet, TimeoutError) as error:
                print(f"FAILED {check.name}: {error!r}", flush=True)
                return False
            print(f"held {check.name}", flush=True)
            return True

    checks = [check for check in conformance.CHECKS if check.name not in gaps]
    held = [
        one(check)
        for number, check in enumerate(checks)
        if number % every == 0 or check.name.startswith("the-guest-cannot-be-")
    ]
    return (await asyncio.gather(*held)).count(False)


def main() -> None:
    uid, repository = int(sys.argv[1]), Path(__file__).resolve().parents[4]
    open_up([Path(sys.prefix), Path(sys.base_prefix), repository])
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    sys.path.insert(0, str(repository))
    import air

    if not Path(str(air.__file__)).is_relative_to(repository):
        sys.exit(f"this user would play the checks of {air.__file__}, not those of {repository}")
    failed = asyncio.run(play(int(sys.argv[2])))
    print(f"{failed} failed", flush=True)
    os._exit(bool(failed))  # what root began, only root may tidy up


if __name__ == "__main__":
    main()
