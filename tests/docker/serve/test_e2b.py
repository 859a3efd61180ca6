"""E2B's stock clients against `air serve sandbox`: sandboxes, commands, files, ports and what is refused."""

from __future__ import annotations

import asyncio
import io
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import httpx
import pytest
from e2b import (
    AsyncSandbox,
    CommandExitException,
    FileNotFoundException,
    InvalidArgumentException,
    NotFoundException,
    Sandbox,
    SandboxException,
    SandboxQuery,
    SandboxState,
    Template,
    TimeoutException,
)
from e2b.sandbox.commands.command_handle import PtySize
from websockets.sync.client import connect

from tests.docker.serve.serving import Served, serving
from tests.until import until

pytestmark = [
    pytest.mark.docker,
    pytest.mark.xdist_group("e2b"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the clients' own parts
]
KEY = "e2b_" + "0" * 40
TEMPLATE = "air-base"


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serving("--max-boxes", "6", "--warm", "1", "--disk-mb", "64", AIR_RUN="e2b-test") as it:
        yield it


@pytest.fixture(scope="module")
def options(server: Served) -> dict[str, Any]:
    return {"api_url": server.url, "sandbox_url": server.url, "api_key": KEY}


@pytest.fixture(scope="module")
def sandbox(options: dict[str, Any]) -> Iterator[Sandbox]:
    """One sandbox for all tests that leave it as it was."""
    with Sandbox.create(TEMPLATE, timeout=600, envs={"COLOUR": "green"}, **options) as it:
        yield it


def test_a_command_runs_with_its_environment_folder_and_exit_code(sandbox: Sandbox) -> None:
    done = sandbox.commands.run("echo $COLOUR $SIZE; pwd; echo no >&2", envs={"SIZE": "7"})
    assert (done.stdout, done.stderr, done.exit_code) == ("green 7\n/home/user\n", "no\n", 0)
    with pytest.raises(CommandExitException) as failed:
        sandbox.commands.run("echo out; exit 3")
    assert (failed.value.exit_code, failed.value.stdout) == (3, "out\n")
    with pytest.raises(InvalidArgumentException, match="does not exist"):
        sandbox.commands.run("true", cwd="/no/such/folder")


def test_root_is_another_user_who_reaches_every_path(sandbox: Sandbox) -> None:
    done = sandbox.commands.run("id -un; pwd; mkdir -p /logs && echo 1 > /logs/a", user="root")
    assert done.stdout == "root\n/root\n"
    assert sandbox.files.write("/logs/mine/b", "2").path == "/logs/mine/b"
    owners = {each.name: each.owner for each in sandbox.files.list("/logs", depth=2)}
    assert owners == {"a": "root", "b": "user", "mine": "user"}
    with pytest.raises(CommandExitException):
        sandbox.commands.run("rm /logs/a")
    sandbox.files.remove("/logs", user="root")


def test_output_comes_while_the_command_runs(sandbox: Sandbox) -> None:
    seen: list[str] = []
    command = sandbox.commands.run(
        "echo one; read line; echo two $line", background=True, stdin=True
    )
    for out, _, _ in command:
        seen.append(out or "")
        if "one" in "".join(seen):
            break
    sandbox.commands.send_stdin(command.pid, "and more\n")
    assert command.wait().stdout == "one\ntwo and more\n"


def test_background_commands_are_listed_joined_and_killed(sandbox: Sandbox) -> None:
    command = sandbox.commands.run("echo begun; sleep 600", background=True)
    assert command.pid in [each.pid for each in sandbox.commands.list()]
    command.disconnect()
    again = sandbox.commands.connect(command.pid)
    assert sandbox.commands.kill(command.pid)
    with pytest.raises(CommandExitException) as ended:
        again.wait()
    assert ended.value.exit_code == -1
    assert not sandbox.commands.kill(command.pid)
    with pytest.raises(NotFoundException):
        sandbox.commands.connect(command.pid)
    assert command.pid not in [each.pid for each in sandbox.commands.list()]


def test_a_command_is_killed_at_its_timeout(sandbox: Sandbox) -> None:
    with pytest.raises(TimeoutException):
        sandbox.commands.run("echo $$ > pid; exec sleep 600", timeout=1)
    pid = sandbox.files.read("pid").strip()
    asyncio.run(until(lambda: "gone" in sandbox.commands.run(f"kill -0 {pid} || echo gone").stdout))


def test_standard_input_is_closed(sandbox: Sandbox) -> None:
    response = _call(sandbox, "process.Process/List", {})
    assert response.status_code == 200
    command = sandbox.commands.run("wc -c", background=True, stdin=True)
    sandbox.commands.send_stdin(command.pid, b"12345")
    sandbox.commands.close_stdin(command.pid)
    assert command.wait().stdout.strip() == "5"


def test_a_terminal_has_a_size_and_echoes(sandbox: Sandbox) -> None:
    seen: list[bytes] = []
    terminal = sandbox.pty.create(PtySize(rows=24, cols=80), timeout=120)
    sandbox.pty.resize(terminal.pid, PtySize(rows=24, cols=101))
    sandbox.pty.send_stdin(terminal.pid, b"stty size; exit 0\n")
    assert terminal.wait(on_pty=seen.append).exit_code == 0
    assert b"24 101" in b"".join(seen)


def test_files_are_written_read_listed_moved_and_removed(sandbox: Sandbox) -> None:
    files = sandbox.files
    assert files.write("a/b/c.txt", "text").path == "/home/user/a/b/c.txt"
    data = bytes(range(256)) * 9000
    files.write_files(
        [{"path": "/tmp/one.bin", "data": data}, {"path": "a/two", "data": io.BytesIO(b"2")}]
    )
    assert bytes(files.read("/tmp/one.bin", format="bytes")) == data
    assert b"".join(files.read("/tmp/one.bin", format="stream")) == data
    names = [(each.name, each.type.value if each.type else "") for each in files.list("a", depth=2)]
    assert names == [("b", "dir"), ("c.txt", "file"), ("two", "file")]
    info = files.get_info("a/two")
    assert (info.size, info.permissions, info.owner) == (1, "-rw-r--r--", "user")
    files.rename("a/two", "a/three")
    assert files.exists("a/three")
    assert not files.exists("a/two")
    assert not files.make_dir("a/b")
    files.remove("a")
    for missing in (
        lambda: files.read("a/b/c.txt"),
        lambda: files.list("a"),
        lambda: files.rename("a", "b"),
    ):
        with pytest.raises(FileNotFoundException):
            missing()
    with pytest.raises(InvalidArgumentException, match="is a directory"):
        files.read("/tmp")


def test_changes_in_a_folder_are_reported(sandbox: Sandbox) -> None:
    sandbox.files.make_dir("watched/below")
    watch = sandbox.files.watch_dir("watched", recursive=True)
    sandbox.files.write("watched/below/new", "1")
    sandbox.files.remove("watched/below/new")
    events: list[tuple[str, str]] = []

    def complete() -> bool:
        events.extend((each.type.value, each.name) for each in watch.get_new_events())
        return ("remove", "below/new") in events

    asyncio.run(until(complete))
    assert ("create", "below/new") in events
    assert ("write", "below/new") in events
    watch.stop()
    with pytest.raises(SandboxException):
        watch.get_new_events()


def test_signed_addresses_need_no_token(sandbox: Sandbox) -> None:
    sandbox.files.write("signed.txt", "for all")
    with urllib.request.urlopen(sandbox.download_url("signed.txt")) as answer:
        assert answer.read() == b"for all"
    expired = sandbox.download_url("signed.txt", use_signature_expiration=-10)
    assert httpx.get(expired).json() == {"code": 401, "message": "signature is already expired"}
    url = sandbox.upload_url("sent.txt")
    assert httpx.post(url, files={"file": b"by form"}).status_code == 200
    assert sandbox.files.read("sent.txt") == "by form"


def test_sandboxes_are_listed_by_metadata_state_and_page(options: dict[str, Any]) -> None:
    with (
        Sandbox.create(TEMPLATE, metadata={"a b": "1&2", "n": "1"}, **options) as first,
        Sandbox.create(TEMPLATE, metadata={"a b": "1&2"}, **options) as second,
    ):
        query = SandboxQuery(metadata={"a b": "1&2"}, state=[SandboxState.RUNNING])
        pages = Sandbox.list(query=query, limit=1, **options)
        ids = [pages.next_items()[0].sandbox_id, pages.next_items()[0].sandbox_id]
        assert ids == [second.sandbox_id, first.sandbox_id]
        assert not pages.has_next
        assert first.get_info().metadata == {"a b": "1&2", "n": "1"}
    assert not Sandbox.kill(first.sandbox_id, **options)
    assert not first.is_running()
    with pytest.raises(TimeoutException, match="sandbox was not found"):
        first.commands.run("true")


def test_the_end_of_a_sandbox_can_be_moved(options: dict[str, Any]) -> None:
    sandbox = Sandbox.create(TEMPLATE, timeout=600, **options)
    before = sandbox.get_info().end_at
    Sandbox.connect(sandbox.sandbox_id, timeout=5, **options)
    assert sandbox.get_info().end_at == before
    Sandbox.connect(sandbox.sandbox_id, timeout=900, **options)
    assert sandbox.get_info().end_at - before > timedelta(seconds=200)
    sandbox.set_timeout(0)
    asyncio.run(until(lambda: not sandbox.is_running()))


def test_a_paused_sandbox_keeps_its_processes_and_goes_on(options: dict[str, Any]) -> None:
    sandbox = Sandbox.create(TEMPLATE, timeout=600, **options)
    command = sandbox.commands.run("read line; echo got $line", background=True, stdin=True)
    sandbox.pause()
    assert not sandbox.is_running()
    assert sandbox.get_info().state == SandboxState.PAUSED
    with pytest.raises(TimeoutException):
        sandbox.commands.list()
    resumed = Sandbox.connect(sandbox.sandbox_id, **options)
    resumed.commands.send_stdin(command.pid, "it\n")
    assert command.wait().stdout == "got it\n"
    resumed.kill()


def test_a_snapshot_is_a_template_and_its_sandbox_lives_on(options: dict[str, Any]) -> None:
    with Sandbox.create(TEMPLATE, timeout=600, **options) as sandbox:
        command = sandbox.commands.run("read line; echo got $line", background=True, stdin=True)
        sandbox.files.write("kept/f", "before")
        sandbox.files.write("/opt/lost", "outside of the workspace", user="root")
        snapshot = sandbox.create_snapshot(name="mine")
        sandbox.files.write("kept/f", "after")
        sandbox.commands.send_stdin(command.pid, "it\n")
        assert command.wait().stdout == "got it\n"
        assert snapshot.names == ["mine"]
        for asked in ({}, {"sandbox_id": sandbox.sandbox_id}, {"name": "mine"}):
            found = Sandbox.list_snapshots(**asked, **options).next_items()
            assert [each.snapshot_id for each in found] == [snapshot.snapshot_id]
        assert not Sandbox.list_snapshots(name="other", **options).next_items()
    with Sandbox.create(snapshot.snapshot_id, timeout=600, **options) as other:
        assert other.files.read("kept/f") == "before"
        assert other.files.get_info("kept/f").owner == "user"
        assert not other.files.exists("/opt/lost")
    assert Sandbox.delete_snapshot(snapshot.snapshot_id, **options)
    assert not Sandbox.delete_snapshot(snapshot.snapshot_id, **options)
    with pytest.raises((SandboxException, NotFoundException), match=snapshot.snapshot_id):
        Sandbox.create(snapshot.snapshot_id, **options)


def test_forks_have_the_files_and_none_sees_anothers_changes(
    server: Served, options: dict[str, Any]
) -> None:
    headers = {"X-API-Key": KEY}
    with Sandbox.create(TEMPLATE, timeout=600, **options) as sandbox:
        sandbox.files.write("f", "one")
        fork_it = f"{server.url}/sandboxes/{sandbox.sandbox_id}/fork"
        answer = httpx.post(fork_it, json={"count": 2}, headers=headers, timeout=120)
        assert answer.status_code == 201
        idents = [each["sandbox"]["sandboxID"] for each in answer.json()]
        forks = [Sandbox.connect(ident, **options) for ident in idents]
        forks[0].files.write("f", "two")
        assert [each.files.read("f") for each in (sandbox, *forks)] == ["one", "two", "one"]
        for fork in forks:
            fork.kill()
        sandbox.pause()
        paused = httpx.post(fork_it, json={}, headers=headers)
        assert (paused.status_code, paused.json()["code"]) == (409, 409)
        assert "is paused: connect to it first" in paused.json()["message"]
    gone = httpx.post(fork_it, json={}, headers=headers)
    assert gone.status_code == 404


def test_commands_that_start_during_a_snapshot_wait_for_it(options: dict[str, Any]) -> None:
    async def play() -> None:
        sandbox = await AsyncSandbox.create(TEMPLATE, timeout=600, **options)
        try:
            await sandbox.commands.run("head -c 30M /dev/urandom > big")
            taking = asyncio.create_task(sandbox.create_snapshot())
            while not taking.done():
                assert (await sandbox.commands.run("echo 1")).stdout == "1\n"
            await AsyncSandbox.delete_snapshot((await taking).snapshot_id, **options)
        finally:
            await sandbox.kill()

    asyncio.run(play())


def test_programs_on_ports_are_reached_by_http_and_websocket(
    sandbox: Sandbox, server: Served
) -> None:
    sandbox.files.write("ports.py", PORTS)
    program = sandbox.commands.run("python3 ports.py", background=True, timeout=0)
    for out, _, _ in program:
        if out and "ready" in out:
            break
    port = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "8000"}
    body = bytes(range(256)) * 2000
    answer = httpx.post(f"{server.url}/a%20b?c=d", content=iter([body]), headers=port, timeout=60)
    assert (answer.status_code, answer.headers["x-path"], answer.content) == (
        418,
        "/a%20b?c=d",
        body,
    )
    named = httpx.get(f"{server.url}/x", headers={"Host": sandbox.get_host(8000)}, timeout=60)
    assert named.headers["x-path"] == "/x"
    assert {"Host", "User-Agent"} <= set(named.headers["x-names"].split())
    address = server.url.replace("http", "ws") + "/chat"
    with connect(address, additional_headers={**port, "E2b-Sandbox-Port": "8001"}) as socket:
        assert socket.recv() == "welcome"
        socket.send("again")
        assert socket.recv() == "again"
        socket.send(b"\0\1")
        assert socket.recv() == b"\0\1"
    closed = httpx.get(f"{server.url}/", headers={**port, "E2b-Sandbox-Port": "8002"}, timeout=60)
    assert closed.status_code == 502
    assert closed.json()["message"] == "The sandbox is running but port is not open"
    program.kill()


@pytest.mark.parametrize("path", ["/sandboxes", "/v2/sandboxes"])
def test_both_ways_to_create_are_served_and_keys_do_it_once(server: Served, path: str) -> None:
    headers = {"X-API-Key": KEY, "Idempotency-Key": f"key of {path}"}
    body = {"templateID": TEMPLATE, "timeout": 60, "autoPause": False, "secure": True}
    answers = [
        httpx.post(server.url + path, json=body, headers=headers, timeout=120) for _ in range(2)
    ]
    assert [each.status_code for each in answers] == [201, 201]
    assert answers[0].json() == answers[1].json()
    ident = answers[0].json()["sandboxID"]
    assert httpx.delete(f"{server.url}/sandboxes/{ident}", headers=headers).status_code == 204
    assert httpx.delete(f"{server.url}/sandboxes/{ident}", headers=headers).status_code == 404


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("volumeMounts", [{"name": "v", "path": "/v"}]),
        ("network", {"allowOut": ["example.com"]}),
        ("iam", {"tokens": {"aws": {}}}),
        ("mcp", {"browserbase": {}}),
        ("unheard", 1),
    ],
)
def test_fields_that_nothing_honours_are_refused(server: Served, field: str, value: Any) -> None:
    body = {"templateID": TEMPLATE, field: value}
    answer = httpx.post(f"{server.url}/v2/sandboxes", json=body, headers={"X-API-Key": KEY})
    assert answer.status_code == 400
    assert answer.json()["code"] == 400
    assert field in answer.json()["message"]
    assert "not served by air" in answer.json()["message"]


@pytest.mark.parametrize(
    ("step", "field", "value"),
    [
        ("pause", "requireHealthyGuest", True),
        ("snapshots", "memory", True),
        ("connect", "autoPause", True),
        ("connect", "memory", False),
        ("resume", "autoPause", True),
    ],
)
def test_fields_of_later_steps_that_nothing_honours_are_refused(
    server: Served, sandbox: Sandbox, step: str, field: str, value: bool
) -> None:
    url = f"{server.url}/sandboxes/{sandbox.sandbox_id}/{step}"
    answer = httpx.post(url, json={field: value}, headers={"X-API-Key": KEY}, timeout=120)
    assert (answer.status_code, answer.json()["code"]) == (400, 400)
    assert f"`{field}: {str(value).lower()}` is not served by air" in answer.json()["message"]


def test_what_is_not_served_names_itself(server: Served, options: dict[str, Any]) -> None:
    answer = httpx.get(f"{server.url}/teams", headers={"X-API-Key": KEY})
    assert answer.json() == {"code": 501, "message": "air does not serve GET /teams"}
    assert Template.exists(TEMPLATE, **options)
    assert not Template.exists("no-such-image", **options)
    with pytest.raises((SandboxException, NotFoundException), match="no-such-image"):
        Sandbox.create("no-such-image", **options)


async def test_the_async_client_streams_from_many_commands_at_once(options: dict[str, Any]) -> None:
    sandbox = await AsyncSandbox.create(TEMPLATE, timeout=600, **options)
    try:
        handles = [
            await sandbox.commands.run(f"cat; echo {n}", background=True, stdin=True)
            for n in range(20)
        ]
        for handle in handles:
            await sandbox.commands.close_stdin(handle.pid)
        results = await asyncio.gather(*(handle.wait() for handle in handles))
        assert [result.stdout for result in results] == [f"{n}\n" for n in range(20)]
        await sandbox.files.write("f", b"1")
        assert await sandbox.files.read("f") == "1"
    finally:
        await sandbox.kill()


async def test_the_async_client_finds_pauses_and_kills_sandboxes(options: dict[str, Any]) -> None:
    metadata = {"owner": "async"}
    sandbox = await AsyncSandbox.create(TEMPLATE, timeout=600, metadata=metadata, **options)
    try:
        waiting = await sandbox.commands.run("read line; echo $line", background=True, stdin=True)
        await sandbox.pause()
        assert not await sandbox.is_running()
        pages = AsyncSandbox.list(query=SandboxQuery(metadata=metadata), **options)
        (found,) = await pages.next_items()
        assert (found.sandbox_id, found.state) == (sandbox.sandbox_id, SandboxState.PAUSED)
        again = await AsyncSandbox.connect(sandbox.sandbox_id, timeout=900, **options)
        assert again.sandbox_id == sandbox.sandbox_id
        await again.commands.send_stdin(waiting.pid, "it\n")
        assert (await waiting.wait()).stdout == "it\n"
        await again.files.make_dir("folder")
        await again.files.write("folder/f", "1")
        assert [entry.name for entry in await again.files.list("folder")] == ["f"]
        with pytest.raises(CommandExitException, match="3"):
            await again.commands.run("exit 3")
    finally:
        assert await sandbox.kill()
    assert not await AsyncSandbox.kill(sandbox.sandbox_id, **options)


def test_a_killed_sandbox_ends_what_its_clients_wait_for(options: dict[str, Any]) -> None:
    sandbox = Sandbox.create(TEMPLATE, timeout=600, **options)
    command = sandbox.commands.run("echo begun; sleep 600", background=True)
    sandbox.kill()
    with pytest.raises(TimeoutException):
        command.wait()


def _call(sandbox: Sandbox, call: str, body: dict[str, Any]) -> httpx.Response:
    headers = {
        "E2b-Sandbox-Id": sandbox.sandbox_id,
        "X-Access-Token": str(sandbox._envd_access_token),
    }
    url = sandbox.connection_config._sandbox_url
    return httpx.post(f"{url}/{call}", json=body, headers=headers)


PORTS = """
import base64, hashlib, socket, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Echo(BaseHTTPRequestHandler):
    def do_GET(self, body=b""):
        self.send_response(418)
        self.send_header("X-Path", self.path)
        self.send_header("X-Names", " ".join(self.headers))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_POST(self):
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.do_GET(body)

def echo_frames(listener):
    connection, _ = listener.accept()
    head = b""
    while b"\\r\\n\\r\\n" not in head:
        head += connection.recv(4096)
    key = next(l.split(b": ")[1] for l in head.split(b"\\r\\n") if l.lower().startswith(b"sec-websocket-key"))
    digest = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    answer = b"HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n"
    connection.sendall(answer + b"Sec-WebSocket-Accept: " + digest + b"\\r\\n\\r\\n\\x81\\x07welcome")
    frames = connection.makefile("rb")
    while head := frames.read(2):
        mask, data = frames.read(4), frames.read(head[1] & 127)
        data = bytes(byte ^ mask[n % 4] for n, byte in enumerate(data))
        connection.sendall(head[:1] + bytes([len(data)]) + data)

listener = socket.create_server(("127.0.0.1", 8001))
threading.Thread(target=echo_frames, args=(listener,), daemon=True).start()
server = ThreadingHTTPServer(("127.0.0.1", 8000), Echo)
print("ready", flush=True)
server.serve_forever()
"""
