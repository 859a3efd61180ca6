"""What a container reaches: nothing, and with an allow-list exactly the names on it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from air.sandbox import open_box
from air.sandbox.conformance.ports import ECHO, echo, output_of, program
from air.sandbox.contract import ownership
from air.sandbox.contract.box import Box, BoxSpec
from air.sandbox.docker import engine
from air.sandbox.network import container_files, egress_proxy
from air.sandbox.pool.box_pool import Pool

pytestmark = pytest.mark.docker
SPEC = BoxSpec()
RUN = "network"
BODY = bytes(range(256)) * 40_000  # 10 MB


class Site:
    """A server of HTTP on every address of this machine; `/up` answers with what it was sent."""

    def __init__(self) -> None:
        self.hits, self.go_on, self.port = 0, asyncio.Event(), 0
        self.go_on.set()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.hits += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            sizes = [line.split(":")[1] for line in head if line.lower().startswith("content-len")]
            body = await reader.readexactly(int(sizes[0])) if sizes else b"hello"
            answer = BODY if "/big" in head[0] else body
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer))
            writer.write(answer[: len(answer) // 2])
            await writer.drain()
            await self.go_on.wait()
            writer.write(answer[len(answer) // 2 :])
            await writer.drain()
        writer.close()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    async with await asyncio.start_server(site, "0.0.0.0", 0) as server:
        site.port = server.sockets[0].getsockname()[1]
        yield site


@contextlib.contextmanager
def neighbour() -> Iterator[tuple[str, str]]:
    """A container on a network of its own, which serves at port 8000: its address and its gateway's."""
    client = engine.client()
    labels = {
        ownership.RUN_LABEL: RUN,
        ownership.OWNER_LABEL: ownership.owner(),
        ownership.EXPIRES_LABEL: ownership.expires(300),
    }
    argv = ["python3", "-m", "http.server", "8000"]
    network = client.create_network(f"air-test-{secrets.token_hex(4)}")["Id"]
    name = ""
    try:
        host = client.create_host_config(auto_remove=True, network_mode=network)
        name = client.create_container("air-base", argv, labels=labels, host_config=host)["Id"]
        client.start(name)
        (found,) = client.inspect_container(name)["NetworkSettings"]["Networks"].values()
        address = found["IPAddress"]
        for _ in range(2000):
            with contextlib.suppress(OSError), socket.create_connection((address, 8000), 5):
                break
            time.sleep(0.05)
        else:
            raise AssertionError("the neighbour does not serve")
        yield address, found["Gateway"]
    finally:
        if name:
            engine.remove(name)
        client.remove_network(network)


REACH = """
import json, socket, sys
found = []
for host, port in json.load(sys.stdin):
    try:
        socket.create_connection((host, port), 3)
        found.append([host, port])
    except OSError:
        pass
for name in ("localhost.localdomain.test", "example.org", "dns.google", "host.docker.internal"):
    try: found.append(socket.getaddrinfo(name, 80)[0][4])
    except OSError: pass
for path in ("/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock"):
    try: found.append(socket.socket(socket.AF_UNIX).connect(path) or path)
    except OSError: pass
print(json.dumps(found))
"""


def _own_addresses() -> set[str]:
    """Addresses of this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # sends nothing
        probe.connect(("192.0.2.1", 1))
        outward = probe.getsockname()[0]
    return {"127.0.0.1", outward}


@pytest.mark.parametrize("listed", [(), ("example.org",)])
async def test_a_box_reaches_no_port_no_metadata_no_neighbour_and_no_resolver(
    site: Site, listed: tuple[str, ...]
) -> None:
    with neighbour() as (address, gateway):
        own = _own_addresses() | {gateway}
        targets = [(host, site.port) for host in own] + [(address, 8000), ("169.254.169.254", 80)]
        targets += [("1.1.1.1", 53), ("169.254.170.2", 80)]
        for host in own:  # from here, each is there to be reached
            socket.create_connection((host, site.port), 5).close()
        async with await open_box(SPEC.model_copy(update={"network": listed}), run=RUN) as box:
            asked = json.dumps(targets).encode()
            result = await box.exec(["python3", "-c", REACH], timeout=120, stdin=asked)
            assert result.text == "[]\n"


GET = """
import sys, urllib.request, urllib.error
for url in sys.argv[1:]:
    try:
        print(urllib.request.urlopen(url, timeout=60).read().decode())
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode().strip())
    except OSError as error:
        print(error)
"""


async def get(box: Box, *urls: str) -> list[str]:
    """What Python's own client makes of each address, with the box's environment."""
    env = {"no_proxy": "", "NO_PROXY": ""}  # else it would not ask a proxy for `localhost`
    result = await box.exec(["python3", "-c", GET, *urls], timeout=120, env=env)
    assert result.ok, result
    return result.text.splitlines()


async def test_a_box_reaches_exactly_what_is_listed(site: Site) -> None:
    listed = f"localhost:{site.port} private"
    spec = SPEC.model_copy(update={"network": ("example.org", listed)})
    async with await open_box(spec, run=RUN) as box:
        assert await get(box, f"http://localhost:{site.port}/") == ["hello"]
        assert site.hits == 1
        names = [socket.gethostname(), "localhost.localdomain", "host.docker.internal"]
        names += _own_addresses()
        names += ["127.1", "2130706433", "0x7f000001", "[::1]", "[::ffff:127.0.0.1]", "0"]
        urls = [f"http://{name}:{site.port}/" for name in names]
        urls += ["http://localhost/", "http://169.254.169.254/", "https://example.com/"]
        for url, answer in zip(urls, await get(box, *urls), strict=True):
            assert "403" in answer, url
            assert f"may reach {listed}" in answer or f"example.org, {listed}" in answer, url
        assert site.hits == 1


async def test_a_tunnel_reaches_exactly_what_is_listed(site: Site) -> None:
    script = f"""
import http.client
for name in ("localhost", "127.0.0.1", "{socket.gethostname()}.test"):
    c = http.client.HTTPConnection("127.0.0.1", {egress_proxy.PORT}, timeout=60)
    c.set_tunnel(name, {site.port})
    try:
        c.request("GET", "/")
        print(c.getresponse().read().decode())
    except OSError as error:
        print(error)
"""
    spec = SPEC.model_copy(update={"network": (f"localhost:{site.port} private",)})
    async with await open_box(spec, run=RUN) as box:
        lines = (await box.exec(["python3", "-c", script], timeout=120)).text.splitlines()
        assert lines[0] == "hello"
        assert [line.partition(":")[0] for line in lines[1:]] == ["Tunnel connection failed"] * 2
        assert all("403 air: " in line for line in lines[1:])


async def test_a_name_that_is_this_machine_is_refused_unless_it_is_listed_as_private(
    site: Site,
) -> None:
    spec = SPEC.model_copy(update={"network": (f"localhost:{site.port}",)})
    async with await open_box(spec, run=RUN) as box:
        refused = "403 air: localhost resolves to an address that is not public"
        assert await get(box, f"http://localhost:{site.port}/") == [refused]
    assert site.hits == 0


async def test_ten_megabytes_up_and_down_while_commands_answer(site: Site) -> None:
    script = f"""
import hashlib, sys, urllib.request
body = open("/dev/urandom", "rb").read(10_000_000)
url = "http://localhost:{site.port}"
back = urllib.request.urlopen(urllib.request.Request(url + "/up", body), timeout=300).read()
print(back == body)
print(hashlib.sha256(urllib.request.urlopen(url + "/big", timeout=300).read()).hexdigest())
"""
    import hashlib

    site.go_on.clear()
    spec = SPEC.model_copy(update={"network": (f"localhost:{site.port} private",)})
    async with await open_box(spec, run=RUN) as box:
        env = {"no_proxy": "", "NO_PROXY": ""}
        bulk = asyncio.create_task(box.exec(["python3", "-c", script], timeout=300, env=env))
        while not site.hits:
            assert (await box.exec("echo yes", timeout=60)).text == "yes\n"
        assert not bulk.done()
        site.go_on.set()
        while not bulk.done():
            assert (await box.exec("echo yes", timeout=60)).text == "yes\n"
        assert (await bulk).text == f"True\n{hashlib.sha256(BODY).hexdigest()}\n"


async def test_garbage_and_a_flood_harm_neither_the_proxy_nor_the_box(site: Site) -> None:
    script = f"""
import os, socket
here = ("127.0.0.1", {egress_proxy.PORT})
def say(data):
    with socket.create_connection(here, 60) as c:
        c.sendall(data)
        c.shutdown(1)
        return c.makefile("rb").readline()[:13]
for data in (b"", b"\\0" * 9, b"GET / HTTP/1.1\\r\\n\\r\\n", b"\\n", os.urandom(999)):
    print(say(data))
kept = []
try:
    while len(kept) < 200: kept.append(socket.create_connection(here, 5))
except OSError:
    pass
print(len(kept) > 100)
"""
    spec = SPEC.model_copy(update={"network": (f"localhost:{site.port} private",)})
    async with await open_box(spec, run=RUN) as box:
        result = await box.exec(["python3", "-c", script], timeout=300)
        assert result.text.splitlines() == ["b'HTTP/1.1 400 '"] * 5 + ["True"]
        assert await get(box, f"http://localhost:{site.port}/") == ["hello"]


async def test_each_box_has_its_own_list_in_a_pool_too(site: Site) -> None:
    url = f"http://localhost:{site.port}/"
    closed, other, opened = (
        SPEC.model_copy(update={"network": names})
        for names in ((), ("example.org",), (f"localhost:{site.port} private",))
    )
    async with Pool(4, warm=1, run=RUN) as pool:
        for _ in range(2):
            async with pool.lease(closed) as a, pool.lease(other) as b, pool.lease(opened) as c:
                assert (await get(a, url))[0].startswith("<urlopen error")
                assert (await get(b, url))[0] == "403 air: this box may reach only example.org"
                assert await get(c, url) == ["hello"]
    assert site.hits == 2


async def test_a_box_that_closes_frees_what_was_open(site: Site) -> None:
    site.go_on.clear()
    spec = SPEC.model_copy(update={"network": (f"localhost:{site.port} private",)})

    async def one() -> None:
        async with await open_box(spec, run=RUN) as box:
            before = site.hits
            url = f"http://localhost:{site.port}/big"
            half = f"http_proxy=http://127.0.0.1:{egress_proxy.PORT} no_proxy= python3 -c '{GET}' {url}"
            await box.exec(
                f"for i in 1 2 3 4 5 6 7 8; do ({half}) & done >/dev/null 2>&1", timeout=60
            )
            while site.hits < before + 8:
                await box.exec(["true"], timeout=60)
            port = await box.forward(0, echo)
            assert await output_of(box, port, ECHO) == "hello"
            kept = "kept = [socket.create_connection(here) for _ in range(8)]\ntime.sleep(600)"
            running = asyncio.create_task(box.exec(program(port, kept), timeout=600))
            await box.exec(["true"], timeout=60)
        await asyncio.wait([running])
        assert running.exception() is not None

    async def descriptors() -> int:
        """How many are open once no task but this is left, the site's included."""
        site.go_on.set()
        for _ in range(5000):
            if len(asyncio.all_tasks()) == 1:
                break
            await asyncio.sleep(0.02)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        site.go_on.clear()
        return _open_descriptors()

    await one()
    before = await descriptors()
    await one()
    assert await descriptors() < before + 8  # the engine's client may open one more


def _open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


LOOKS = """
import json, os, socket
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(("localhost", server.getsockname()[1])).close()
try:
    found = socket.getaddrinfo("example.org", 80)
except OSError:
    found = []
names = [os.readlink("/proc/self/ns/net")]
for path in ("/etc/hosts", "/etc/resolv.conf"):
    names.append(str(os.stat(path)[1:3]))  # number and device
print(json.dumps([names, os.listdir("/sys/class/net"), found]))
"""


async def _without_network_setup(box: Box) -> bool:
    """Whether the engine left out the set-up of a box's network."""
    return not (await engine.inspected(box.id))["NetworkSettings"]["SandboxKey"]


async def test_a_box_has_a_loopback_of_its_own_though_the_engine_sets_up_no_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIR_CACHE", str(tmp_path))
    async with container_files.mounts(SPEC, "none") as files:
        if not files:
            pytest.skip("the engine runs no runc by default, or cannot show files to a box")
    names: list[str] = []
    async with await open_box(SPEC, run=RUN) as one, await open_box(SPEC, run=RUN) as other:
        for box in (one, other):
            assert await _without_network_setup(box)
            done = await box.exec(["python3", "-c", LOOKS], timeout=60)
            own, interfaces, found = json.loads(done.text)
            assert (interfaces, found) == (["lo"], [])
            names += own
            changed = await box.exec("echo 127.0.0.1 other >> /etc/hosts", timeout=60)
            assert changed.code != 0
    assert len(set(names)) == 6, "no two boxes share a network or a file"
    assert os.readlink("/proc/self/ns/net") not in names  # noqa: PTH115
    assert list((tmp_path / "network").iterdir()) == []


async def test_files_that_a_killed_process_left_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIR_CACHE", str(tmp_path))
    left, starting = (tmp_path / "network" / name for name in ("air-left", "air-starting"))
    for folder in (left, starting):
        folder.mkdir(parents=True)
        (folder / "hosts").write_text("")
    os.utime(left, (0, 0))
    async with container_files.mounts(SPEC, "air-mine") as files:
        if not files:
            pytest.skip("the engine runs no runc by default, or cannot show files to a box")
        assert not left.exists()
        assert starting.exists()


@pytest.fixture
def unknown_engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The engine by an address that this process has not used before."""
    known = (os.environ.get("DOCKER_HOST") or "unix:///run/docker.sock").removeprefix("unix://")
    with tempfile.TemporaryDirectory() as folder:  # `tmp_path` is too long for a socket
        Path(folder, "engine").symlink_to(known)
        monkeypatch.setenv("DOCKER_HOST", f"unix://{folder}/engine")
        yield


@pytest.mark.usefixtures("unknown_engine")
async def test_an_engine_that_sees_other_files_sets_the_network_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AIR_CACHE", "/proc/self/cwd/cache")  # each process has its own
    for _ in range(2):
        async with await open_box(SPEC, run=RUN) as box:
            assert not await _without_network_setup(box)
            done = await box.exec(["python3", "-c", LOOKS], timeout=60)
            assert json.loads(done.text)[1:] == [["lo"], []]
    async with container_files.mounts(SPEC, "none") as files:
        assert files == []
