"""Who counts as dead, and what counts as left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from air.sandbox.ops import cleanup


def _dead_pid() -> int:
    """A pid that was ours a moment ago and is nobody's now."""
    return int(subprocess.check_output([sys.executable, "-c", "import os; print(os.getpid())"]))


def test_this_process_is_alive_and_others_are_only_dead_for_certain() -> None:
    host, pid, start = cleanup.owner().rsplit(":", 2)
    assert int(pid) == os.getpid()
    assert not cleanup.is_dead(cleanup.owner())
    assert cleanup.is_dead(f"{host}:{pid}:{int(start) - 1}")
    assert cleanup.is_dead(f"{host}:{_dead_pid()}:{start}")
    assert not cleanup.is_dead(f"other/0/0:{_dead_pid()}:{start}")
    for nonsense in ("", "x", f"{host}:x:y", f"{host}:{pid}"):
        assert not cleanup.is_dead(nonsense)


def test_left_behind() -> None:
    now, host = time.time(), cleanup.owner().rsplit(":", 2)[0]
    ours = {cleanup.OWNER_LABEL: cleanup.owner(), cleanup.EXPIRES_LABEL: cleanup.expires(60)}
    dead = ours | {cleanup.OWNER_LABEL: f"{host}:{_dead_pid()}:1"}
    assert not cleanup.is_left_behind(ours, now=now)
    assert not cleanup.is_left_behind(ours, now=now + 60 + cleanup.WARM_SECONDS - 2)
    assert cleanup.is_left_behind(ours, now=now + 60 + cleanup.WARM_SECONDS + 2)
    assert cleanup.is_left_behind(dead, now=now)
    assert not cleanup.is_left_behind({}, now=now)
    assert not cleanup.is_left_behind({cleanup.OWNER_LABEL: dead[cleanup.OWNER_LABEL]}, now=now)
    assert not cleanup.is_left_behind(ours | {cleanup.EXPIRES_LABEL: "soon"}, now=now)


def test_folders_of_the_dead_are_removed() -> None:
    root, start = Path(tempfile.gettempdir()), cleanup.owner().rsplit(":", 2)[2]
    here = cleanup.folder_prefix().removeprefix(cleanup.FOLDER_PREFIX).partition("-")[0]
    dead = root / f"{cleanup.FOLDER_PREFIX}{here}-{_dead_pid()}-{start}-x"
    elsewhere = root / f"{cleanup.FOLDER_PREFIX}{int(here) + 1}-{_dead_pid()}-{start}-x"
    alive = root / f"{cleanup.folder_prefix()}x"
    foreign = root / f"{cleanup.FOLDER_PREFIX}x"
    try:
        for folder in (dead, elsewhere, alive, foreign):
            (folder / "workspace").mkdir(parents=True)
        removed = cleanup.collect_folders()
        assert str(dead) in removed
        assert not dead.exists()
        assert alive.exists()
        assert elsewhere.exists()  # whoever owns it may live in its own pid namespace
        assert foreign.exists()
    finally:
        for folder in (elsewhere, alive, foreign):
            (folder / "workspace").rmdir()
            folder.rmdir()


def test_only_names_of_ours_have_an_owner() -> None:
    host, pid, start = cleanup.owner().rsplit(":", 2)
    assert cleanup.folder_owner(cleanup.folder_prefix() + "0123") == f"{host}:{pid}:{start}"
    for name in (
        "air-box-x",
        "air-box-",
        "air-box-1-x-y",
        "air-box-x-1-y",
        "air-box-1-2-3-",
        "air-box-1-2-x-y",
        f"x{pid}-{start}-y",
        "",
    ):
        assert cleanup.folder_owner(name) == ""
