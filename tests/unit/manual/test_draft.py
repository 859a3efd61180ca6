"""The record of an episode played by hand, as it is saved: whole or not at all, and nowhere else."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from air.errors import ConfigError, InfrastructureError
from air.manual.draft import Draft
from air.trajectories import load
from air.trajectories.artefacts import ArtefactStore, read_artefact

FILES = {"w": bytes(range(256)) * 40}


def lines(*kept: str) -> Draft:
    """A record of gradings whose artefacts are said to lie there."""
    found = Draft("e")
    found.write("start", task="t", system="", prompt="")
    for turn, name in enumerate(kept, start=1):
        found.write("validate", turn=turn, score=0.5, kept=name)
    return found


def keep(folder: Path, digest: str) -> str:
    return ArtefactStore(folder, most_bytes=100_000, most_total=100_000).keep(digest, FILES)


def all_files(folder: Path) -> list[str]:
    found = [path for path in folder.rglob("*") if not path.is_dir()]
    return sorted(str(path.relative_to(folder)) for path in found)


def test_no_name_in_a_record_leads_out_of_its_folder(tmp_path: Path) -> None:
    """A recorded episode that is entered may come from anywhere."""
    source, mine = tmp_path / "a" / "theirs", tmp_path / "b" / "mine"
    good = keep(source, "aa")
    secret = tmp_path / "a" / "secret"
    secret.write_text("secret")
    for name in ("bb", "cc"):
        (source / "artefacts" / name).mkdir()
    (source / "artefacts/bb/bb.tar.gz").symlink_to(secret)
    (source / "artefacts/cc/cc.tar.gz").symlink_to("cc.tar.gz")
    (source / "x.py").write_text("x")
    bad = ("../secret", "x.py", str(secret), "artefacts/../x.py", "artefacts/bb/bb.tar.gz")
    lines(good, *bad, "artefacts/cc/cc.tar.gz").save(mine / "one.jsonl", [source])
    assert [one.kept for one in load(mine / "one.jsonl").validations] == [good, *[""] * 6]
    assert read_artefact(mine, good) == FILES
    assert all_files(tmp_path / "b") == [f"mine/{good}", "mine/one.jsonl"]


def test_an_artefact_is_not_written_through_a_link(tmp_path: Path) -> None:
    source, mine, away = tmp_path / "theirs", tmp_path / "mine", tmp_path / "away"
    good = keep(source, "aa")
    (mine / "artefacts").mkdir(parents=True)
    away.mkdir()
    (mine / "artefacts" / "aa").symlink_to(away)
    with pytest.raises(ConfigError, match="a link out of"):
        lines(good).save(mine / "one.jsonl", [source])
    assert all_files(away) == all_files(mine / "artefacts" / "aa") == []


@contextmanager
def full_disk(left: int) -> Iterator[None]:
    """No file grows over so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    sys.stdout.flush()
    resource.setrlimit(resource.RLIMIT_FSIZE, (left, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_what_was_saved_stays_until_the_next_is_whole(tmp_path: Path) -> None:
    path, record = tmp_path / "one.jsonl", lines()
    record.save(path, [])
    first = path.read_bytes()
    record.write("step", turn=1, reply="x" * 10_000, shown="")
    with full_disk(2000), pytest.raises(InfrastructureError, match=r"one\.jsonl"):
        record.save(path, [])
    record.write("validate", turn=1, score=float("nan"))
    with pytest.raises(ConfigError, match=r"one\.jsonl: .*JSON"):
        record.save(path, [])
    assert path.read_bytes() == first
    del record.lines[2]
    record.save(path, [])
    assert [len(step.reply) for step in load(path).steps] == [10_000]
    assert all_files(tmp_path) == ["one.jsonl"]


def test_an_artefact_is_copied_whole_or_not_at_all(tmp_path: Path) -> None:
    kept = ArtefactStore(tmp_path / "theirs", most_bytes=1000_000, most_total=1000_000)
    files = {str(n): bytes([n, 255 - n]) + str(n**400).encode() for n in range(99)}
    name, path = kept.keep("aa", files), tmp_path / "mine" / "one.jsonl"
    record = lines(name)
    with full_disk(4000), pytest.raises(InfrastructureError, match="cannot keep"):
        record.save(path, [tmp_path / "theirs"])
    assert all_files(tmp_path / "mine") == []
    record.save(path, [tmp_path / "theirs"])
    assert read_artefact(tmp_path / "mine", name) == files


def test_a_name_that_cannot_be_one_is_said(tmp_path: Path) -> None:
    loop = tmp_path / "loop.jsonl"
    loop.symlink_to(loop)
    for name in ("a" * 300, "a\0b", "no.jsonl/one"):
        (tmp_path / "no.jsonl").touch()
        with pytest.raises((ConfigError, InfrastructureError), match=r"cannot (save|record) to"):
            lines().save(tmp_path / f"{name}.jsonl", [])
    nowhere = tmp_path / "nowhere.jsonl"
    nowhere.symlink_to(tmp_path / "none.jsonl")
    for path in (tmp_path / "no.jsonl", nowhere, loop):
        with pytest.raises(ConfigError, match=r"is there already|cannot save to"):
            lines().save(path, [])
