"""Attempts to get out of a sandbox, or into another one, through E2B's interface."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2b import Sandbox
from e2b.exceptions import AuthenticationException, FileNotFoundException, SandboxException

from tests.docker.serve.serving import Served, serving
from tests.until import until

pytestmark = [
    pytest.mark.docker,
    pytest.mark.xdist_group("e2b-attacks"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the clients' own parts
]
KEY = "e2b_" + "1" * 40
TEMPLATE = "air-base"


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    flags = ("--max-boxes", "3", "--warm", "1", "--disk-mb", "64")
    with serving(*flags, AIR_SERVE_TOKEN=KEY, AIR_RUN="e2b-attacks") as it:
        yield it


@pytest.fixture(scope="module")
def options(server: Served) -> dict[str, Any]:
    return {"api_url": server.url, "sandbox_url": server.url, "api_key": KEY}


@pytest.fixture(scope="module")
def pair(options: dict[str, Any]) -> Iterator[tuple[Sandbox, Sandbox]]:
    """Two sandboxes: an attacker's and a victim's."""
    with (
        Sandbox.create(TEMPLATE, timeout=600, **options) as attacker,
        Sandbox.create(TEMPLATE, timeout=600, **options) as victim,
    ):
        victim.files.write("secret", "of the victim")
        yield attacker, victim


@pytest.fixture
def client(server: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as it:
        yield it


def token(sandbox: Sandbox) -> str:
    return str(sandbox._envd_access_token)


def test_the_control_plane_needs_the_servers_token(
    client: httpx.Client, pair: tuple[Sandbox, Sandbox], options: dict[str, Any]
) -> None:
    attacker, victim = pair
    for key in ("", "e2b_" + "2" * 40, token(attacker)):
        headers = {"X-API-Key": key}
        for method, path in (
            ("GET", "/v2/sandboxes"),
            ("GET", f"/sandboxes/{victim.sandbox_id}"),
            ("DELETE", f"/sandboxes/{victim.sandbox_id}"),
            ("POST", f"/sandboxes/{victim.sandbox_id}/pause"),
        ):
            answer = client.request(method, path, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (401, 401)
    with pytest.raises(AuthenticationException):
        Sandbox.create(TEMPLATE, **{**options, "api_key": "e2b_" + "2" * 40})
    # The header of a sandbox opens the sandbox alone, with its own token, and not the control plane.
    forged = {"E2b-Sandbox-Id": attacker.sandbox_id, "X-Access-Token": token(attacker)}
    assert client.get("/v2/sandboxes", headers=forged).status_code == 501


def test_a_sandboxs_token_opens_no_other_sandbox(
    client: httpx.Client, pair: tuple[Sandbox, Sandbox]
) -> None:
    attacker, victim = pair
    ids = {"E2b-Sandbox-Id": victim.sandbox_id, "E2b-Sandbox-Port": "49983"}
    for access in (
        {},
        {"X-Access-Token": token(attacker)},
        {"X-Access-Token": ""},
        {"X-API-Key": KEY},
    ):
        headers = {**ids, **access}
        read = client.get("/files", params={"path": "secret"}, headers=headers)
        assert read.status_code == 401
        stat = client.post("/filesystem.Filesystem/Stat", json={"path": "secret"}, headers=headers)
        assert (stat.status_code, stat.json()["code"]) == (401, "unauthenticated")
        run = {**headers, "E2b-Sandbox-Port": "49999"}
        assert client.post("/execute", json={"code": "1"}, headers=run).status_code == 401
    # Two headers, of which the proxy and the server might read different ones, and a host against them.
    twice = [("E2b-Sandbox-Id", attacker.sandbox_id), ("E2b-Sandbox-Id", victim.sandbox_id)]
    more = [("Host", f"49983-{victim.sandbox_id}.localhost"), ("X-Access-Token", token(attacker))]
    answer = client.get("/files", params={"path": "secret"}, headers=[*twice, *more])
    assert answer.status_code in (401, 404)


def test_a_signature_opens_one_file_of_one_sandbox(
    client: httpx.Client, pair: tuple[Sandbox, Sandbox]
) -> None:
    attacker, victim = pair
    signed = httpx.URL(attacker.download_url("secret"))
    for changed in (
        {"path": "/etc/passwd"},
        {"username": "root"},
        {"signature": "v1_"},
        {"signature_expiration": "99999999999"},
    ):
        answer = client.get("/files", params={**signed.params, **changed})
        assert answer.status_code == 401, changed
    assert client.post("/files", params=signed.params, content=b"x").status_code == 401
    other = {"E2b-Sandbox-Id": victim.sandbox_id}
    assert client.get("/files", params=signed.params, headers=other).status_code == 401
    assert victim.files.read("secret") == "of the victim"


def test_paths_stay_in_the_box(pair: tuple[Sandbox, Sandbox], tmp_path: Path) -> None:
    attacker, _ = pair
    (tmp_path / "host").write_text("of the host")
    for path in (str(tmp_path / "host"), f"../../../../{tmp_path}/host"):
        assert not attacker.files.exists(path)
    with pytest.raises(SandboxException):
        attacker.files.read(f"/proc/1/root{tmp_path}/host")
    attacker.commands.run(f"ln -s {tmp_path}/host link; ln -s / root")
    assert not attacker.files.exists("root" + str(tmp_path / "host"))
    with pytest.raises(FileNotFoundException):
        attacker.files.read("link")


@pytest.mark.parametrize("port", ["0", "65536", "99999", "-1", "x"])
def test_ports_that_are_none_are_refused(
    client: httpx.Client, pair: tuple[Sandbox, Sandbox], port: str
) -> None:
    headers = {"E2b-Sandbox-Id": pair[0].sandbox_id, "E2b-Sandbox-Port": port}
    answer = client.get("/files", params={"path": "/etc/passwd"}, headers=headers)
    assert answer.status_code in (401, 502)


def test_no_port_leads_to_the_host_or_another_box(
    client: httpx.Client, server: Served, pair: tuple[Sandbox, Sandbox]
) -> None:
    attacker, victim = pair
    listening = victim.commands.run("python3 -u -m http.server 8000", background=True, timeout=0)
    headers = {"E2b-Sandbox-Port": "8000", "E2b-Sandbox-Id": attacker.sandbox_id}
    assert client.get("/secret", headers=headers).status_code == 502
    own = httpx.URL(server.url).port
    answer = client.get("/health", headers={**headers, "E2b-Sandbox-Port": str(own)})
    assert (answer.status_code, answer.json()["message"]) == (
        502,
        "The sandbox is running but port is not open",
    )
    listening.kill()


def test_a_program_of_the_box_cannot_take_over_another_ones_connection(
    client: httpx.Client, pair: tuple[Sandbox, Sandbox]
) -> None:
    attacker, _ = pair
    headers = {"E2b-Sandbox-Port": "1", "E2b-Sandbox-Id": attacker.sandbox_id}
    assert client.get("/", headers=headers).status_code == 502  # the relay listens from now on
    guess = """
import socket
for line in open("/proc/net/tcp").readlines()[1:]:
    port = int(line.split()[1].split(":")[1], 16)
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(b"a" * 32 + b"\\n")
    print(repr(connection.recv(100)))
"""
    attacker.files.write("guess.py", guess)
    said = attacker.commands.run("python3 guess.py").stdout.splitlines()
    assert said
    assert set(said) == {"b''"}
    assert client.get("/", headers=headers).status_code == 502


def test_names_and_frames_that_break_the_rules_are_refused(
    client: httpx.Client, pair: tuple[Sandbox, Sandbox]
) -> None:
    attacker, _ = pair
    own = {"E2b-Sandbox-Id": attacker.sandbox_id, "X-Access-Token": token(attacker)}
    kind = {"Content-Type": "application/connect+json"}
    for body in (b"\0\xff\xff\xff\xff", b"\1\0\0\0\2{}", b"\0\0\0\0\1{", b"\0\0\0\0\2[]", b""):
        answer = client.post("/process.Process/Start", content=body, headers={**own, **kind})
        assert answer.status_code == 200
        assert answer.content[0] == 2
        assert b'"error"' in answer.content
    assert client.post("/process.Process/List", content=b"[" * 9000, headers=own).status_code in (
        400,
        501,
    )
    nobody = {**own, "Authorization": "Basic bm9ib2R5MTo="}
    stat = client.post("/filesystem.Filesystem/Stat", json={"path": "."}, headers=nobody)
    assert (stat.status_code, stat.json()["code"]) == (401, "unauthenticated")
    gone = {**own, "E2b-Sandbox-Id": "i" + "0" * 20}
    answer = client.get("/health", headers=gone)
    assert (answer.status_code, answer.json()["message"]) == (502, "The sandbox was not found")


TUNNEL = """
import socket
server = socket.create_server(("127.0.0.1", 8001))
print("on", flush=True)
while True:
    connection, _ = server.accept()
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 8\\r\\n\\r\\nreal")
    connection.recv(65536)
    connection.close()
"""


def test_neither_a_tunnel_nor_an_impossible_port_harms_other_connections(
    server: Served, client: httpx.Client, pair: tuple[Sandbox, Sandbox]
) -> None:
    attacker, _ = pair
    attacker.files.write("tunnel.py", TUNNEL)
    program = attacker.commands.run("python3 tunnel.py", background=True, timeout=0)
    assert next(iter(program))[0] == "on\n"
    ids = {"E2b-Sandbox-Id": attacker.sandbox_id, "E2b-Sandbox-Port": "8001"}
    with client.stream("GET", "/", headers=ids) as answer:
        pieces = answer.iter_raw()
        assert next(pieces) == b"real"
        for port in ("65536", "99999"):
            other = client.get("/", headers={**ids, "E2b-Sandbox-Port": port})
            assert other.status_code == 502
        for port, host in ((8001, "x"), (99999, f"99999-{attacker.sandbox_id}.localhost")):
            own = {"Host": host} | ({} if port == 99999 else ids)
            tunnel = client.request("CONNECT", "/", headers=own)
            assert tunnel.status_code == (400 if port == 8001 else 502)
        assert client.get("/health").status_code == 200
    program.kill()


@pytest.mark.parametrize(
    ("call", "body"),
    [
        ("process.Process/SendSignal", '{"process": {"pid": 1}, "signal": []}'),
        ("filesystem.Filesystem/GetWatcherEvents", '{"watcherId": {"a": 1}}'),
        ("process.Process/Update", '{"process": {"pid": 1}, "pty": {"size": [1, 2]}}'),
        ("filesystem.Filesystem/Stat", '{"path": "\\ud800"}'),
        ("process.Process/Start", '{"process": {"cmd": "sleep", "args": ["9", "\\ud800"]}}'),
        (
            "process.Process/Start",
            '{"process": {"cmd": "sleep", "args": ["9"], "envs": {"A": NaN}}}',
        ),
        (
            "process.Process/Start",
            f'{{"process": {{"cmd": "ls", "args": {"[" * 980 + "]" * 980}}}}}',
        ),
    ],
    ids=["signal", "watcher", "size", "path", "surrogate", "nan", "nested"],
)
def test_messages_that_are_odd_json_are_refused(
    client: httpx.Client, pair: tuple[Sandbox, Sandbox], call: str, body: str
) -> None:
    own = {"E2b-Sandbox-Id": pair[0].sandbox_id, "X-Access-Token": token(pair[0])}
    json_kind, content = "application/json", body.encode()
    if "/Start" in call:
        json_kind = "application/connect+json"
        content = b"\0" + len(content).to_bytes(4, "big") + content
    if "/Update" in call or "/SendSignal" in call:  # they name a process that runs
        running = pair[0].commands.run("sleep 600", background=True, timeout=0)
        content = content.replace(b'"pid": 1', f'"pid": {running.pid}'.encode())
    answer = client.post(f"/{call}", content=content, headers={**own, "Content-Type": json_kind})
    assert answer.status_code in (200, 400, 404)  # a stream has its error in its last message
    assert re.search(rb'"code": ?"(invalid_argument|not_found)"', answer.content)
    assert client.post("/process.Process/List", json={}, headers=own).status_code == 200


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/v2/sandboxes", "application/json"),
        ("/files?path=cut", "application/octet-stream"),
        ("/process.Process/SendInput", "application/json"),
        ("/process.Process/Start", "application/connect+json"),
    ],
)
async def test_a_client_that_leaves_in_its_body_is_no_fault_of_the_server(
    server: Served, pair: tuple[Sandbox, Sandbox], path: str, kind: str
) -> None:
    own = {"E2b-Sandbox-Id": pair[0].sandbox_id, "X-Access-Token": token(pair[0])}
    headers = {"Content-Type": kind, "Content-Length": "100", "Host": "localhost", "X-API-Key": KEY}
    headers |= {} if path == "/v2/sandboxes" else own
    url = httpx.URL(server.url)
    _, writer = await asyncio.open_connection(url.host, url.port)
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    writer.write("\r\n".join([*lines, "", "half"]).encode())
    await writer.drain()
    writer.close()

    def statuses() -> set[int]:
        requests = [line for line in server.log() if line["event"] == "request"]
        mine = {line["status"] for line in requests if line["path"] == path.partition("?")[0]}
        return mine & {499, 500}

    await until(statuses, every=0.05)
    assert statuses() == {499}


def test_compressed_uploads_are_whole_or_refused(
    client: httpx.Client, pair: tuple[Sandbox, Sandbox]
) -> None:
    own = {"E2b-Sandbox-Id": pair[0].sandbox_id, "X-Access-Token": token(pair[0])}
    own |= {"Content-Type": "application/octet-stream", "Content-Encoding": "gzip"}
    first, second = gzip.compress(bytes(3 << 20)), gzip.compress(b"second")

    def sent(content: bytes) -> int:
        params = {"path": "zipped"}
        return client.post("/files", params=params, content=content, headers=own).status_code

    assert sent(first + second) == 200
    assert pair[0].files.read("zipped", format="bytes") == bytes(3 << 20) + b"second"
    for cut in (first[:-1], first[: len(first) // 2], first + second[:-1], first + b"x", b""):
        assert sent(cut) == 400


async def test_a_form_is_written_while_it_arrives(
    server: Served, pair: tuple[Sandbox, Sandbox]
) -> None:
    """Nothing of it lies on the server's machine."""
    own = {"E2b-Sandbox-Id": pair[0].sandbox_id, "X-Access-Token": token(pair[0])}
    own |= {"Content-Type": "multipart/form-data; boundary=END"}
    disposition = 'Content-Disposition: form-data; name="{}"; filename="{}"\r\n\r\n'
    opened = [
        disposition.format(*pair).encode() for pair in (("file", "1"), ("x", "2"), ("file", "3"))
    ]
    lines, url = b"\r\n" * 50_000, f"{server.url}/files?path=1"

    async def body() -> AsyncIterator[bytes]:
        yield b"--END\r\n" + opened[0] + bytes(3 << 20)
        await until(
            lambda: len(httpx.get(url, headers=own, timeout=60).content) >= 2 << 20, every=1
        )
        yield b"\r\n--END\r\n" + opened[1] + b"skipped\r\n--END\r\n" + opened[2]
        yield lines + b"\r\n--END--\r\n"

    async with httpx.AsyncClient(base_url=server.url, timeout=600) as client:
        answer = await client.post("/files", content=body(), headers=own)
        assert [each["path"] for each in answer.json()] == ["/home/user/1", "/home/user/3"]
        assert len(pair[0].files.read("1", format="bytes")) == 3 << 20
        assert pair[0].files.read("3", format="bytes") == lines
        assert not pair[0].files.exists("2")
        first = b"--END\r\n" + opened[0] + b"1"
        second = b"\r\n--END\r\n" + opened[2]
        for path, content in (
            ("", first),
            ("", b"no form"),
            ("one", first + second + b"\r\n--END--\r\n"),
            ("one", b"--END--\r\n"),
        ):
            answer = await client.post(
                "/files", params={"path": path}, content=content, headers=own
            )
            assert (answer.status_code, answer.json()["code"]) == (400, 400), content


def test_bodies_without_a_length_are_bounded(
    client: httpx.Client, pair: tuple[Sandbox, Sandbox]
) -> None:
    ids = {"E2b-Sandbox-Id": pair[0].sandbox_id, "E2b-Sandbox-Port": "49999"}
    body = (b" " * (1 << 20) for _ in range(17))
    assert client.post("/contexts", content=body, headers=ids).status_code == 413


def test_entries_of_any_name_and_time_are_listed(pair: tuple[Sandbox, Sandbox]) -> None:
    attacker, _ = pair
    attacker.commands.run(
        "mkdir odd; touch odd/$'\\xff' odd/late; ln -s $'\\xfe' odd/link; "
        "python3 -c \"import os; os.utime('odd/late', (1e13, 1e13))\""
    )
    entries = {entry.name: entry for entry in attacker.files.list("odd")}
    assert sorted(entries) == ["?", "late", "link"]
    assert entries["late"].modified_time.year == 9999


def test_the_time_limit_of_a_stream_holds_beside_its_pings(
    client: httpx.Client, pair: tuple[Sandbox, Sandbox]
) -> None:
    attacker, _ = pair
    running = attacker.commands.run("sleep 600", background=True, timeout=0)
    headers = {"E2b-Sandbox-Id": attacker.sandbox_id, "X-Access-Token": token(attacker)}
    headers |= {"Content-Type": "application/connect+json", "Connect-Timeout-Ms": "1500"}
    message = json.dumps({"process": {"pid": running.pid}}).encode()
    body = b"\0" + len(message).to_bytes(4, "big") + message
    headers |= {"Keepalive-Ping-Interval": "1"}
    answer = client.post("/process.Process/Connect", content=body, headers=headers)
    assert b"keepalive" in answer.content
    assert b"deadline_exceeded" in answer.content
    running.kill()
