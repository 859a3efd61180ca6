"""`air serve sandbox` as a process: address, token, health, metrics, log, and its end."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from air.cli.main import main
from air.serve.http import metrics
from tests.docker.client import boxes_of
from tests.docker.serve.serving import Served, serving
from tests.until import until

pytestmark = pytest.mark.docker
TOKEN = "a-secret-of-the-test"
PROGRAM = {"language": "python", "code": "print(1 + 1)"}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serving(
        "--max-boxes", "2", "--warm", "1", AIR_SERVE_TOKEN=TOKEN, AIR_RUN="serve-test"
    ) as it:
        yield it


def serve(*flags: str, **env: str) -> subprocess.CompletedProcess[str]:
    """`air serve sandbox`, which must end by itself."""
    argv = [sys.executable, "-m", "air.cli.main", "serve", "sandbox", *flags]
    return subprocess.run(
        argv, capture_output=True, text=True, timeout=120, check=False, env=os.environ | env
    )


def test_a_request_without_the_token_is_refused(server: Served) -> None:
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic !"}):
        answer = httpx.post(f"{server.url}/run_code", json=PROGRAM, headers=headers, timeout=60)
        assert answer.status_code == 401
        assert answer.json()["detail"] == "the request carries no valid token"
    assert httpx.get(f"{server.url}/metrics").status_code == 401
    assert TOKEN not in str(server.log())


def test_clients_can_send_the_token_in_three_ways(server: Served) -> None:
    basic = "Basic " + base64.b64encode(f"air:{TOKEN}".encode()).decode()
    for headers in (
        {"authorization": f"Bearer {TOKEN}"},
        {"X-API-Key": TOKEN},
        {"authorization": basic},
    ):
        assert httpx.get(f"{server.url}/v1/ping", headers=headers).json() == "pong"
    address = urlsplit(server.url).netloc
    assert httpx.get(f"http://air:{TOKEN}@{address}/v1/ping").json() == "pong"


def test_health_needs_no_token_and_names_the_languages_to_those_who_have_it(
    server: Served,
) -> None:
    assert httpx.get(f"{server.url}/health").json() == {"status": "ok"}
    headers = {"authorization": f"Bearer {TOKEN}"}
    body = httpx.get(f"{server.url}/health", headers=headers).json()
    assert body["status"] == "ok"
    assert body["image"] == "air-base"
    assert body["boxes"]["max"] == 2
    assert {"python", "bash"} <= set(body["sandboxfusion"]["languages"])
    assert "cpp" not in body["sandboxfusion"]["languages"]


def test_metrics_and_the_log_count_what_ran(server: Served) -> None:
    headers = {"authorization": f"Bearer {TOKEN}"}

    def counts() -> dict[str, float]:
        text = httpx.get(f"{server.url}/metrics", headers=headers).text
        return dict(metrics.parse(text))

    run = 'air_serve_runs_total{language="python",status="Success"}'
    before = counts()
    answer = httpx.post(f"{server.url}/run_code", json=PROGRAM, headers=headers, timeout=60)
    assert answer.json()["run_result"]["stdout"] == "2\n"
    after = counts()
    assert after[run] - before.get(run, 0) == 1
    assert after["air_serve_boxes_max"] == 2
    requests = [line for line in server.log() if line["event"] == "request"]
    line = next(line for line in requests if line.get("result"))
    facts = {name: line[name] for name in ("path", "status", "language", "result")}
    assert facts == {
        "path": "/run_code",
        "status": 200,
        "language": "python",
        "result": "Success",
    }
    assert PROGRAM["code"] not in str(server.log())


def test_air_doctor_checks_a_server(
    server: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AIR_SERVE_TOKEN", raising=False)
    assert main(["doctor", server.url]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [["ok", "server"], ["fail", "program"]]
    assert lines[0].endswith("tells more only with its token")
    assert lines[-1].endswith("→ export AIR_SERVE_TOKEN=…")
    monkeypatch.setenv("AIR_SERVE_TOKEN", TOKEN)
    assert main(["doctor", server.url]) == 0
    output = capsys.readouterr().out
    assert "`print(6 * 7)` ran in" in output
    assert [line.split()[1] for line in output.splitlines()] == [
        *("server", "boxes", "languages", "program"),
    ]
    assert TOKEN not in output
    address = urlsplit(server.url).netloc
    assert main(["doctor", "http://" + address.replace("127.0.0.1", "127.0.0.7")]) == 1
    assert "no answer" in capsys.readouterr().out


def test_a_port_in_use_is_one_clear_line(server: Served) -> None:
    port = str(urlsplit(server.url).port)
    done = serve("--port", port, "--image", "air-base")
    assert done.returncode == 2
    assert done.stderr == (
        f"error: 127.0.0.1:{port}: cannot listen there (Address already in use) — choose another "
        "--port (0 for a free one) or --host\n"
    )


def test_another_address_needs_a_token() -> None:
    done = serve("--host", "0.0.0.0", "--port", "0")
    assert done.returncode == 2
    assert "0.0.0.0 is not loopback, so other machines need a `token`" in done.stderr


def test_an_image_that_is_not_built_is_named() -> None:
    done = serve("--image", "air-no-such", "--port", "0")
    assert (done.returncode, done.stdout) == (2, "")
    assert "air-no-such" in done.stderr


def test_a_runtime_that_the_engine_lacks_is_one_clear_line() -> None:
    done = serve("--image", "air-base", "--port", "0", AIR_OCI_RUNTIME="air-no-such")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "AIR_OCI_RUNTIME: the container engine has no runtime 'air-no-such'" in line


def test_ctrl_c_ends_running_and_paused_sandboxes_and_deletes_snapshots(tmp_path: Path) -> None:
    run = f"serve-e2b-{os.getpid()}"
    flags = ("--warm", "0", "--max-boxes", "3", "--disk-mb", "16", "--image", "air-base")
    with serving(*flags, AIR_RUN=run, TMPDIR=str(tmp_path)) as served:

        def post(path: str, **body: Any) -> dict[str, Any]:
            answer = httpx.post(f"{served.url}{path}", json=body, timeout=120)
            assert answer.is_success, answer.text
            return dict(answer.json()) if answer.content else {}

        names = ("running", "frozen", "stored")
        wanted = {"templateID": "air-base", "timeout": 3600}
        ids = {each: post("/v2/sandboxes", **wanted)["sandboxID"] for each in names}
        post(f"/sandboxes/{ids['frozen']}/pause")
        post(f"/sandboxes/{ids['running']}/snapshots")
        assert any(tmp_path.rglob("*"))
        post(f"/sandboxes/{ids['stored']}/pause", memory=False)
        asyncio.run(
            until(lambda: len(boxes_of(run)) == 3, every=0.2)
        )  # one of them holds the files
        assert served.stop(signal.SIGINT) == 0
        assert boxes_of(run) == []
        assert list(tmp_path.iterdir()) == []


async def test_ctrl_c_ends_every_box() -> None:
    run = f"serve-{os.getpid()}"
    program = {"language": "bash", "code": "sleep 600", "run_timeout": 900}
    with serving("--warm", "0", "--max-boxes", "1", AIR_RUN=run) as served:
        async with httpx.AsyncClient(base_url=served.url, timeout=120) as client:
            request = asyncio.create_task(client.post("/run_code", json=program))
            await until(lambda: served.boxes()["lent"] == 1, every=0.05)
            assert len(boxes_of(run)) == 1
            assert await asyncio.to_thread(served.stop, signal.SIGINT) == 0
            assert boxes_of(run) == []
            (outcome,) = await asyncio.gather(request, return_exceptions=True)
            assert isinstance(outcome, httpx.TransportError) or outcome.status_code == 500
        events = [line["event"] for line in served.log()]
        assert "signal" in events
        assert events[-1] == "stop"
