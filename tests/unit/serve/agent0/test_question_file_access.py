"""The requests that `GET /hello?name=FILE` of `air serve evaluate` refuses: names outside the folder, web
pages, and requests without the token."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import httpx
import pytest

from air.errors import ConfigError
from air.serve.evaluate.row_files import RowFiles
from air.serve.evaluate.server import Evaluate, opened
from air.serve.evaluate.settings import EvaluateConfig
from air.serve.http.app import application
from air.serve.http.log import Log
from air.serve.http.metrics import Metrics
from air.testing import ScriptedServer
from tests.tools_server import running
from tests.unit.serve.agent0.question_file_service import (
    ROWS,
    Service,
    ordinary_user,
    results_of,
    service,
    solved,
)
from tests.unit.test_origin_check import BROWSER


async def test_names_that_lead_out_of_the_folder_are_refused(served: Service) -> None:
    outside = served.folder.parent / "outside"
    outside.mkdir()
    secret = outside / "secret.json"
    secret.write_text(json.dumps(ROWS))
    (served.folder / "link.json").symlink_to(secret)
    (served.folder / "away").symlink_to(outside)
    (served.folder / "inner").mkdir()
    (served.folder / "loop").symlink_to(served.folder / "loop")
    (served.folder / "dir.json").mkdir()
    os.mkfifo(served.folder / "pipe.json")
    for name, status, text in [
        (secret, 403, "outside the folder"),
        ("../outside/secret.json", 403, "outside the folder"),
        ("inner/../../outside/secret.json", 403, "outside the folder"),
        ("/etc/absent/x.json", 403, "outside the folder"),
        ("away/secret.json", 403, "outside the folder"),
        ("link.json", 403, "symbolic link"),
        ("dir.json", 403, "not a regular file"),
        ("pipe.json", 403, "not a regular file"),
        ("loop/x.json", 400, "cannot be followed"),
        ("absent.json", 404, "no such file"),
        ("absent/x.json", 404, "no such file"),
        ("../temp_results/absent.json", 404, "no such file"),
        ("x.txt", 400, "must end in .json"),
        ("", 400, "must end in .json"),
        ("x.json.json", 400, "nowhere else"),
        ("x_results.json", 400, "must not end in _results.json"),
        ("x\0.json", 400, "must end in .json"),
        ("x" * 300 + ".json", 400, "name is too long"),
    ]:
        response = await served.hello(name)
        assert (response.status_code, list(response.json())) == (status, ["error"]), name
        assert text in response.json()["error"]
    assert json.loads(secret.read_text()) == ROWS
    assert list(outside.iterdir()) == [secret]
    assert (await served.http.get("/hello")).status_code == 400


async def test_a_link_to_the_folder_is_no_way_out(served: Service) -> None:
    """The disk can have another name on the client's machine, or a link can lead to it."""
    alias = served.folder.parent / "alias"
    alias.symlink_to(served.folder)
    path = served.write()
    response = await served.hello(alias / path.name)
    assert response.status_code == 200
    assert str(results_of(alias / path.name)) in response.json()["message"]
    assert len(json.loads(results_of(path).read_text())) == 3


async def test_a_file_that_the_server_may_not_read_is_forbidden(open_folder: Path) -> None:
    with ScriptedServer(solved) as model:
        async with service(open_folder, model.url, k=1) as served:
            path = served.write()
            path.chmod(0)
            assert (await served.hello("absent.json")).status_code == 404  # air has imported all
            with ordinary_user():
                response = await served.hello(path.name)
            assert response.status_code == 403
            assert response.json()["error"].startswith(f"{path.name}: the server may not read it")


async def test_web_pages_and_heads_are_refused(served: Service) -> None:
    path = served.write()
    site = "http://example.com"
    for headers in (
        {"sec-fetch-site": "cross-site"},  # of an image, which has no `Origin`
        {"sec-fetch-site": "same-site"},  # of any other port of this machine
        {"sec-fetch-site": "new"},
        {"user-agent": BROWSER},  # which does not say for which page
        {"user-agent": BROWSER, "host": "0.0.0.0"},
        {"origin": site},
        {"host": "example.com"},
    ):
        assert (await served.hello(path, headers=headers)).status_code == 403, headers
    head = await served.http.head("/hello", params={"name": str(path)})
    assert head.status_code == 405
    assert path.exists()
    own = {"sec-fetch-site": "none", "user-agent": BROWSER}  # typed into the address bar
    assert (await served.hello(path, headers=own)).status_code == 200


async def test_the_token_is_required(tmp_path: Path) -> None:
    with ScriptedServer(solved) as model:
        async with service(tmp_path, model.url, k=1, token="secret") as served:
            path = served.write()
            assert (await served.hello(path)).status_code == 401
            assert path.exists()
            key = {"authorization": "Bearer secret"}
            page = {"sec-fetch-site": "cross-site", **key}
            assert (await served.hello(path, headers=page)).status_code == 403
            assert (await served.hello(path, headers=key)).status_code == 200


def test_the_folder_must_be_usable(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for path in (tmp_path / "absent", file):
        with pytest.raises(ConfigError, match=r"--files: .* is not a folder"):
            RowFiles(path)


async def test_without_a_folder_there_is_no_such_path(tmp_path: Path) -> None:
    with ScriptedServer(solved) as model:
        config = EvaluateConfig(model=model.url, model_name="m")
        async with (
            opened(config, Metrics(), Log(io.StringIO())) as server,
            running(application(server, [Evaluate(server)])) as url,
            httpx.AsyncClient(base_url=url) as http,
        ):
            assert (await http.get("/hello?name=x.json")).status_code == 404
            host = {"host": "0.0.0.0"}
            assert (await http.get("/health", headers=host)).status_code == 403
