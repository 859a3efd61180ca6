"""What a container engine's answer says of the changes in a folder."""

from __future__ import annotations

import pytest

from air.errors import ConfigError
from air.sandbox.contract.entries import Change
from air.sandbox.writable_layer import changes

C, A, D = 0, 1, 2


def _below(folder: str, *rows: tuple[str, int], made: tuple[str, ...] = ()) -> list[Change]:
    answer = [{"Path": path, "Kind": kind} for path, kind in rows]
    return list(changes.below(answer, folder, set(made)))


def test_changes_are_those_in_the_folder_without_the_folders_around_them() -> None:
    rows = (
        ("/app", C),
        ("/app/in", C),
        ("/app/in/a", A),
        ("/app/b", D),
        ("/apple", A),
        ("/etc", C),
    )
    assert _below("/app", *rows) == [Change("/app/in/a", "added"), Change("/app/b", "deleted")]
    assert [change.path for change in _below("/", *rows)] == [
        "/app/in/a",
        "/app/b",
        "/apple",
        "/etc",
    ]
    assert _below("/app/in/a", *rows) == [Change("/app/in/a", "added")]


def test_folders_that_the_guest_made_are_no_change() -> None:
    rows = (("/app", A), ("/app/new", A), ("/app/new/x", A))
    assert _below("/app", *rows, made=("/app", "/app/new")) == [Change("/app/new/x", "added")]


def test_what_the_engine_and_the_guest_make_is_no_change() -> None:
    rows = (("/.air", A), ("/.dockerenv", A), ("/etc", C), ("/etc/hosts", C), ("/etc/x", A))
    assert _below("/", *rows) == [Change("/etc/x", "added")]


def test_a_folder_that_went_with_a_folder_around_it_is_deleted() -> None:
    rows = (("/srv", D), ("/srv/app", A), ("/srv/app/x", A))
    assert _below("/srv/app", *rows) == [
        Change("/srv/app", "deleted"),
        Change("/srv/app", "added"),
        Change("/srv/app/x", "added"),
    ]
    assert _below("/app", ("/app", D)) == [Change("/app", "deleted")]


@pytest.mark.parametrize(
    ("folder", "word"),
    [("/data", "volume /data"), ("/data/in", "volume"), ("/", "volume"), ("app", "absolute")],
)
def test_a_folder_whose_changes_no_engine_sees_is_refused(folder: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        changes.check({"Volumes": {"/data/": {}}}, folder)
    changes.check({"Volumes": {"/data/": {}}}, "/app")


def test_a_runtime_that_hides_its_changes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIR_OCI_RUNTIME", "runsc")
    with pytest.raises(ConfigError, match="'runsc' hide their changes"):
        changes.check({}, "/app")
