"""Downloads of a task: fetched on request, whole and right or not at all; over a real HTTP server."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from air.cli.main import main
from air.errors import ConfigError, InfrastructureError, MissingError
from air.tasks.data import prepare
from air.tasks.downloads import checked, fetch
from air.tasks.missing_resources import missing
from air.tasks.spec import TaskSpec
from tests.unit.tasks.conftest import MakeTask

DATA = """
import os, pathlib
def prepare(agent_dir, grader_dir, split_seed):
    source = pathlib.Path(os.environ["AIR_DOWNLOADS"]) / "points.txt"
    (grader_dir / "answer.txt").write_text(source.read_text())
"""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder and the address under which its files are served."""
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "points.txt").write_text("1 2 3")
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def declared(
    make_task: MakeTask, address: str, md5: str = "", name: str = "points.txt"
) -> TaskSpec:
    toml = f'[[data.downloads]]\nname = "{name}"\nurl = "{address}/points.txt"\nmd5 = "{md5}"\n'
    return make_task(toml=toml, data=DATA)


def test_data_wait_until_they_are_fetched(make_task: MakeTask, served: tuple[Path, str]) -> None:
    task = declared(make_task, served[1], hashlib.md5(b"1 2 3").hexdigest())
    assert missing(task) == ["data (air tasks fetch tiny)"]
    with pytest.raises(MissingError, match=r"points\.txt not downloaded.*air tasks fetch tiny"):
        prepare(task)
    fetch(task)
    assert missing(task) == []
    assert (prepare(task).grader / "data" / "answer.txt").read_text() == "1 2 3"


def test_what_is_not_what_was_published_is_not_kept(
    make_task: MakeTask, served: tuple[Path, str], cache: Path
) -> None:
    task = declared(make_task, served[1], "0" * 32)
    with pytest.raises(InfrastructureError, match=r"its md5 is .*, expected 0000"):
        fetch(task)
    assert list((cache / "downloads" / "tiny").iterdir()) == []


def test_without_a_published_checksum_the_first_download_counts(
    make_task: MakeTask, served: tuple[Path, str]
) -> None:
    task = declared(make_task, served[1])
    folder = fetch(task)
    kept = (folder / "points.txt.sha256").read_text()
    assert kept == hashlib.sha256(b"1 2 3").hexdigest()
    (served[0] / "points.txt").write_text("other")
    assert fetch(task) == folder
    assert (folder / "points.txt").read_text() == "1 2 3"
    (folder / "points.txt").write_text("changed here")
    with pytest.raises(MissingError, match=r"its sha256 is .*delete it and fetch it again"):
        checked(task)
    (folder / "points.txt.sha256").unlink()
    with pytest.raises(MissingError, match="no checksum of it was kept"):
        checked(task)


def test_a_server_that_has_it_not_is_named(
    make_task: MakeTask, served: tuple[Path, str], cache: Path
) -> None:
    (served[0] / "points.txt").unlink()
    with pytest.raises(InfrastructureError, match=r"download of http://127.*404"):
        fetch(declared(make_task, served[1]))
    assert list((cache / "downloads" / "tiny").iterdir()) == []


@pytest.mark.parametrize("name", ["../x", "a/b", ".hidden", ""])
def test_a_download_stays_in_its_folder(make_task: MakeTask, name: str) -> None:
    with pytest.raises(ConfigError, match=r"data\.downloads\.0\.name"):
        declared(make_task, "http://127.0.0.1", name=name)


def test_the_commands(
    make_task: MakeTask, served: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    root = str(declared(make_task, served[1]).folder.parent)
    assert main(["tasks", "--task-root", root]) == 0
    assert "missing: data (air tasks fetch tiny)" in capsys.readouterr().out
    assert main(["tasks", "--task-root", root, "check", "--all", "--provider", "process"]) == 0
    assert "not checked: tiny: needs data (air tasks fetch tiny)" in capsys.readouterr().out
    assert main(["tasks", "--task-root", root, "fetch", "tiny"]) == 0
    assert main(["tasks", "--task-root", root]) == 0
    assert "missing" not in capsys.readouterr().out
    assert main(["tasks", "fetch", "titanic"]) == 2
    assert "need no download" in capsys.readouterr().err
