"""Boxes of images without Python: one is mounted, and everything of the contract holds."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from air.errors import BoxFileError, BoxStartError
from air.sandbox import conformance, open_box
from air.sandbox.contract.box import BoxLimits, BoxSpec
from air.sandbox.contract.shell import Shell
from air.sandbox.docker import container_spec, engine, portable_python
from air.sandbox.guest import copy_python
from air.sandbox.network import container_files, egress_proxy
from air.sandbox.ops import container_exec
from air.sandbox.pool.box_pool import Pool
from tests.docker.boxes.shared_boxes import SharedBoxes, shared_boxes
from tests.docker.client import box_with_python, boxes_of, docker_client
from tests.processes import running
from tests.until import until

pytestmark = pytest.mark.docker
RUN = f"portable-python-{os.getpid()}"
"""The run of every box of these tests, of one process."""
LABEL = f"air.test.image={os.getpid()}"
BARE = f"""
FROM air-base
USER 0
RUN rm -rf /usr/lib/python3* /usr/bin/python3* /usr/share/python3* /usr/bin/*bash /bin/*bash
ENV PATH=/usr/local/bin:/usr/bin:/bin
LABEL {LABEL}
"""
HIDDEN = f"""
FROM air-base
USER 0
RUN mkdir -p /agent/bin && ln -s $(readlink -f /usr/bin/python3) /agent/bin/python3 && rm /usr/bin/python3
LABEL {LABEL}
"""
BUSYBOX = f"""
FROM scratch
COPY busybox /bin/busybox
RUN ["/bin/busybox", "sh", "-c", "/bin/busybox --install -s /bin; mkdir /workspace /tmp"]
ENV PATH=/bin
LABEL {LABEL}
"""
NEEDS_PROGRAMS = frozenset(
    {
        # Scripts of bash.
        "a-damaged-shell-goes-on",
        "a-killed-command-leaves-its-shell-as-it-was",
        "a-shell-keeps-directory-and-exports",
        "a-shell-keeps-nothing-else",
        "a-shell-takes-long-scripts",
        "a-string-goes-through-bash-a-sequence-as-it-is",
        "a-timeout-kills-the-whole-tree",
        "long-commands",
        "nothing-writes-after-the-freeze",
        "odd-names",
        "a-folder-goes-in-and-comes-out",
        "processes-that-fork-and-leave-are-ended",
        # Programs of Python.
        "a-killed-process-is-gone-before-the-next-command",
        "a-name-that-is-swapped-while-it-is-read-leads-nowhere",
        "a-program-whose-first-thread-has-ended-is-killed",
        "a-program-whose-first-thread-has-ended-stands-still-in-a-frozen-box",
        "a-program-that-never-reads-stops-its-handler-and-nothing-else",
        "a-second-user-is-kept-apart",
        "cpu-is-bounded",
        "empty-files-are-bounded",
        "its-ports-are-answered-by-the-harness",
        "its-programs-reach-one-another-as-localhost",
        "memory-is-bounded",
        "memory-of-many-processes-is-bounded",
        "one-timeout-leaves-another-command-s-program-without-a-first-thread-alone",
        "only-regular-files-are-opened",
        "processes-that-trace-each-other-stand-still-in-a-frozen-box",
        "shared-memory-does-not-outlive-its-process",
        "ten-megabytes-pass-each-way-while-commands-answer",
        "the-guest-cannot-be-killed-stopped-or-traced",
        "there-are-no-more-processes-than-allowed",
        "there-is-no-network",
        "two-hundred-connections-at-once-are-bounded-and-all-are-served",
        "what-no-handler-reads-is-not-kept",
        "with-no-process-left-files-are-still-served",
        "working-directory-and-environment",
        # Options that programs of GNU have.
        "a-cancelled-exec-kills-its-command",
        "a-forks-own-writes-are-bounded",
        "full-disks-are-bounded-and-said",
        "nobody-makes-namespaces",
        "only-the-named-folders-can-be-written",
        "output-is-never-taken-for-an-answer",
    }
)
"""Checks whose own scripts busybox cannot run. They are played in an image that has these programs for
commands, but no Python where a guest looks for it; all others in one with nothing but busybox."""

OFTEN = frozenset(
    {
        "a-folder-goes-in-and-comes-out",
        "a-second-user-is-kept-apart",
        "a-timeout-kills-the-whole-tree",
        "commands-run-at-once",
        "its-ports-are-answered-by-the-harness",
        "links-are-not-followed",
        "nobody-in-it-has-privileges",
        "only-the-named-folders-can-be-written",
        "out-of-memory-ends-commands-first",
        "the-guest-cannot-be-killed-stopped-or-traced",
        "the-guest-cannot-be-read-or-written",
    }
)
"""Checks that another Python, at another place, could change. The others run here with AIR_FULL=1;
`tests/docker/boxes/test_docker_box.py` runs all of them with the same guest."""
CHECKS = [
    pytest.param(check, id=check.name, marks=() if check.name in OFTEN else (pytest.mark.full,))
    for check in conformance.CHECKS
]


@pytest.fixture(scope="module")
def swept() -> Iterator[None]:
    """Removes every image that these tests have made."""
    yield
    with docker_client() as client:
        for image in client.images.list(all=True, filters={"label": LABEL}):
            if image.tags:
                client.images.remove(image.id, force=True)
        client.images.prune(filters={"dangling": True, "label": LABEL})


def _built(name: str, dockerfile: str, files: dict[str, bytes]) -> str:
    """Builds an image of ours, without any network."""
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as tar:
        for path, data in {**files, "Dockerfile": dockerfile.encode()}.items():
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(data), 0o755
            tar.addfile(member, io.BytesIO(data))
    context.seek(0)
    tag = f"air-test-{name}-{os.getpid()}"
    with docker_client() as client:
        client.images.build(
            fileobj=context,
            custom_context=True,
            tag=tag,
            network_mode="none",
            rm=True,
            forcerm=True,
            nocache=True,  # another run of these tests may remove what it has put into the cache
        )
    return tag


@pytest.fixture(scope="module")
def bare(swept: None) -> str:
    """Debian without Python and without bash."""
    return _built("bare", BARE, {})


@pytest.fixture(scope="module")
def hidden(swept: None) -> str:
    """The base image, whose Python is in a folder that only commands are told of."""
    return _built("hidden", HIDDEN, {})


@pytest.fixture(scope="module")
def busybox_binary(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A busybox that needs no library."""
    folder = tmp_path_factory.mktemp("busybox")
    binary = shutil.which("busybox")
    if binary is None:
        argv = ["apt-get", "download", "-qq", "busybox-static"]
        done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"no busybox here, and none to download: {done.stderr.strip()[-200:]}")
        package = next(folder.glob("*.deb"))
        subprocess.run(["dpkg-deb", "-x", str(package), str(folder / "x")], check=True)
        binary = str(folder / "x" / "bin" / "busybox")
    return Path(binary).read_bytes()


@pytest.fixture(scope="module")
def busybox(swept: None, busybox_binary: bytes) -> str:
    """Nothing but busybox and a folder to work in."""
    return _built("busybox", BUSYBOX, {"busybox": busybox_binary})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def boxes(swept: None) -> AsyncIterator[SharedBoxes]:
    """Closed before their images are removed."""
    async with shared_boxes() as boxes:
        yield boxes


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("check", CHECKS)
async def test_conformance(
    check: conformance.Check, boxes: SharedBoxes, request: pytest.FixtureRequest
) -> None:
    if check.name in NEEDS_PROGRAMS:
        path = "/agent/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        spec = BoxSpec(image=request.getfixturevalue("hidden"), env={"PATH": path})
    else:
        spec = BoxSpec(image=request.getfixturevalue("busybox"))
    await asyncio.wait_for(boxes.run(check, spec), 600)


def test_every_check_that_needs_programs_is_one() -> None:
    assert {check.name for check in conformance.CHECKS} >= NEEDS_PROGRAMS | OFTEN


async def test_an_image_without_python_is_found_out_once(
    bare: str, caplog: pytest.LogCaptureFixture
) -> None:
    spec = BoxSpec(image=bare)
    with caplog.at_level(logging.INFO, logger="air"):
        async with Pool(3, warm=1, run=RUN) as pool:

            async def one(index: int) -> str:
                async with pool.lease(spec) as box:
                    return (await box.exec(f"ls -A; touch x; echo {index}", timeout=60)).text

            assert await asyncio.gather(*(one(i) for i in range(4))) == [f"{i}\n" for i in range(4)]
    said = [r.getMessage() for r in caplog.records if "boxes get one mounted" in r.getMessage()]
    assert len(said) == 1
    assert f"image {bare} has no Python 3.8 or later" in said[0]
    assert (pool.stats.live, pool.stats.failed) == (0, 0)
    assert not boxes_of(RUN)


async def test_an_image_with_python_has_none_mounted() -> None:
    async with await open_box(BoxSpec(), run=RUN) as box:
        found = await asyncio.to_thread(engine.client().inspect_container, box.id)
        assert {mount["Destination"] for mount in found["Mounts"]} <= container_files.FILES.keys()
        assert found["Config"]["Entrypoint"][0] == "python3"


ENV = {"TOKEN": "hunter2"}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("image", ["bare", "busybox"])
async def test_what_any_image_can_do(
    image: str, boxes: SharedBoxes, request: pytest.FixtureRequest
) -> None:
    async with boxes.lend(BoxSpec(image=request.getfixturevalue(image), env=ENV)) as box:
        script = "echo $0 $TOKEN; cat; echo err >&2; exit 3"
        result = await box.exec(script, stdin=b"\0\xff", timeout=60)
        assert (result.code, result.stdout) == (3, b"sh hunter2\n\0\xff")
        assert result.stderr == b"err\n"
        result = await box.exec(["printf", "%s|", "$HOME", "a b", ""], timeout=60)
        assert result.stdout == b"$HOME|a b||"
        assert (await box.exec("grep localhost /etc/hosts", timeout=60)).ok
        script = "(setsid env -i sleep 987.1 &); setsid sleep 987.2 & echo early; sleep 987.3"
        result = await box.exec(script, timeout=1.0)
        assert (result.code, result.stdout, result.timed_out) == (137, b"early\n", True)
        assert (await box.exec(LEFT, timeout=60)).stdout == b""
        result = await box.exec(f"printf %s {'x' * 10_000_000} | wc -c", timeout=60)
        assert result.text.strip() == "10000000"
        described = await asyncio.to_thread(engine.client().inspect_container, box.id)
        assert "hunter2" not in str(described)


LEFT = "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -o 'sleep 98[7]' || true"
"""Prints a line for each of our sleeps that runs in a box."""


@pytest.mark.asyncio(loop_scope="module")
async def test_a_persons_command_in_an_image_without_python(
    busybox: str, boxes: SharedBoxes
) -> None:
    async with boxes.lend(BoxSpec(image=busybox, env=ENV)) as box:
        printed: list[bytes] = []
        argv = ["sh", "-c", "id -u; pwd; ulimit -Hn; exit 7"]
        code = await asyncio.to_thread(
            container_exec.run, box.id, argv, show=lambda _, data: printed.append(data)
        )
        assert (code, b"".join(printed)) == (7, b"1000\n/workspace\n4096\n")


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("delay", [0.0, 0.02, 0.2])
async def test_a_cancelled_command_leaves_nothing(
    busybox: str, boxes: SharedBoxes, delay: float
) -> None:
    async with boxes.lend(BoxSpec(image=busybox, env=ENV)) as box:
        task = asyncio.create_task(box.exec("setsid sleep 987.4 & sleep 987.5", timeout=600))
        await asyncio.sleep(delay)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        for _ in range(1000):
            if not (left := (await box.exec(LEFT, timeout=60)).stdout):
                break
            await asyncio.sleep(0.05)
        assert left == b""


@pytest.mark.parametrize("second_user", [False, True])
async def test_commands_neither_change_the_mounted_python_nor_see_it_in_their_environment(
    busybox: str, second_user: bool
) -> None:
    async with await open_box(BoxSpec(image=busybox, second_user=second_user)) as box:
        names = (await box.exec("env | sed 's/=.*//' | grep -E '^(PYTHON|LD_)'", timeout=60)).text
        assert names == ""
        assert (await box.exec("echo $PATH", timeout=60)).text == "/bin\n"
        spoil = "for f in $(find /.air); do { [ -d $f ] && touch $f/x || echo >> $f; } 2>/dev/null "
        spoil += "&& echo $f; chmod 777 $f 2>/dev/null && echo $f; done; rm -rf /.air/* 2>/dev/null"
        assert (await box.exec(spoil, timeout=60)).stdout == b""
        special = "find /.air ! -type l ( -perm -2 -o -perm -4000 -o -perm -2000 )"
        assert (await box.exec(special.split(), timeout=60)).text == ""
        assert (await box.exec("echo alive", timeout=60)).text == "alive\n"


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("image", ["bare", "busybox"])
async def test_a_shell_of_an_image_without_bash(
    image: str, boxes: SharedBoxes, request: pytest.FixtureRequest
) -> None:
    async with boxes.lend(BoxSpec(image=request.getfixturevalue(image), env=ENV)) as box:
        shell = Shell(box)
        odd = 'it\'s "$(x)" \\ two\nlines '
        quoted = shlex.quote(odd)
        result = await shell.exec(f"export A={quoted} B=1; C=1; cd /tmp; cat", timeout=60)
        assert (result.code, result.text, shell.cwd) == (0, "", "/tmp")
        shown = 'printf "%s|" "$0" "$A" "$B" "${C-none}" "$PWD" "${BASH_ENV-none}"; exit 7'
        result = await shell.exec(shown, timeout=60)
        assert (result.code, result.text) == (7, f"sh|{odd}|1|none|/tmp|none|")
        for script, seconds in (
            ("kill -9 $$", 60),
            ("sleep 600", 1.0),
            ("trap true EXIT", 60),
            ("exec true", 60),
        ):
            await shell.exec(f"export A=2; cd /; {script}", timeout=seconds)
            result = await shell.exec('pwd; [ "$B" = 1 ] && [ "$A" != 2 ] && echo kept', timeout=60)
            assert (script, result.text) == (script, "/tmp\nkept\n")
        script = "set -eu; mkdir gone; cd gone; rmdir ../gone; false; echo not"
        result = await shell.exec(script, timeout=60)
        assert (result.code, result.text, shell.cwd) == (1, "", "/tmp/gone")
        result = await shell.exec("pwd", timeout=60)
        assert result.text == "/tmp/gone is gone, this runs in /workspace\n/workspace\n"
        result = await shell.exec("true\nno-such-program", timeout=60)
        assert result.code == 127
        assert image == "busybox" or b"sh: 2:" in result.stderr  # busybox tells no line
        result = await shell.exec(f"cd /\n: {'x' * 1_000_000}\nexit 7", timeout=60)
        assert (result.code, result.text, shell.cwd) == (7, "", "/")


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("image", ["bare", "busybox"])
async def test_files_in_any_image(
    image: str, boxes: SharedBoxes, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    for name, data in {"a/b": b"\0\xff" * 800_000, "new\nline/\udcff": b"", "-rf": b"1"}.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(data)
    (source / "-rf").chmod(0o755)
    async with boxes.lend(BoxSpec(image=request.getfixturevalue(image), env=ENV)) as box:
        await box.put(source, "in")
        await box.exec("ln in/a/b in/a/hard; echo x > big; ln -s /etc out; mkfifo pipe", timeout=60)
        await box.get("in", tmp_path / "back")
        for path in ("a/b", "new\nline/\udcff", "-rf"):
            assert (tmp_path / "back" / path).read_bytes() == (source / path).read_bytes(), path
        assert (tmp_path / "back/a/hard").read_bytes() == (source / "a/b").read_bytes()
        assert os.access(tmp_path / "back/-rf", os.X_OK)
        for path, why in (("out/passwd", "a link"), ("pipe", "not a regular"), ("big", "larger")):
            with pytest.raises(BoxFileError, match=why):
                await box.read(path, max_bytes=1)
        for refused in (
            box.write("out/x", b""),
            box.put(source, "out"),
            box.get(".", tmp_path / "n"),
        ):
            with pytest.raises(BoxFileError, match=r"link|regular file"):
                await refused
        assert not (tmp_path / "n").exists()
        await box.write("out", b"mine", mode=0o600)
        assert await box.read("out") == b"mine"


async def test_a_snapshot_of_an_image_without_python(bare: str) -> None:
    spec = BoxSpec(image=bare, limits=BoxLimits(disk_mb=16))
    async with await open_box(spec, run=RUN) as box:
        await box.exec(
            "(while :; do echo x >> log; done) > /dev/null 2>&1 & echo 1 > a; "
            "until [ -s log ]; do sleep 0.01; done",
            timeout=60,
        )
        async with await box.snapshot() as snapshot, await open_box(spec, run=RUN) as fork:
            await fork.restore(snapshot)
            assert await fork.read("a") == b"1\n"
            result = await fork.exec(
                "echo 2 >> a; cat a; wc -c < log; sleep 0.2; wc -c < log", timeout=60
            )
            one, two, before, after = result.text.split()
            assert (one, two, before) == ("1", "2", after)
    assert not boxes_of(RUN)


async def _page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
    await writer.drain()
    writer.close()


async def test_ports_and_network_of_an_image_with_nothing_but_busybox(busybox: str) -> None:
    async with await asyncio.start_server(_page, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        spec = BoxSpec(image=busybox, network=(f"localhost:{port} private",))
        async with await open_box(spec, run=RUN) as box:
            forwarded = await box.forward(0, ("127.0.0.1", port))
            get = f"http_proxy= wget -q -O - http://127.0.0.1:{forwarded}/"
            assert (await box.exec(get, timeout=60)).text == "hello"
            listed = f"wget -q -O - http://localhost:{port}/"
            assert (await box.exec(listed, timeout=60)).text == "hello"
            other = await box.exec("wget -q -O - http://elsewhere.example/", timeout=60)
            assert other.code == 1
            assert b"403" in other.stderr
            names = (await box.exec("echo $http_proxy", timeout=60)).text
            assert str(egress_proxy.PORT) in names
    assert not boxes_of(RUN)


async def test_an_image_without_a_shell_says_so(swept: None, busybox_binary: bytes) -> None:
    dockerfile = f"FROM scratch\nCOPY true /bin/true\nENV PATH=/bin\nLABEL {LABEL}\n"
    alone = _built("alone", dockerfile, {"true": busybox_binary})
    async with await open_box(BoxSpec(image=alone), run=RUN) as box:
        result = await box.exec("echo", timeout=60)
        assert (result.code, result.began) == (127, False)
        assert result.stderr == b"air: cannot run a script: there is neither `bash` nor `sh`\n"
        assert (await box.exec(["true"], timeout=60)).ok
        await box.write("a", b"1")
        assert await box.read("a") == b"1"
    assert not boxes_of(RUN)


HARNESS = """
import asyncio, sys
from air.sandbox import open_box
from air.sandbox.contract.box import BoxSpec

async def main():
    box = await open_box(BoxSpec(image=sys.argv[2]), run=sys.argv[1])
    task = asyncio.create_task(box.exec("trap '' TERM; setsid sleep 600 & while :; do :; done", timeout=600))
    await box.exec("true", timeout=60)
    print("ready", flush=True)
    await task

asyncio.run(main())
"""


async def test_sigkill_of_the_harness_ends_the_box(busybox: str) -> None:
    argv = [sys.executable, "-c", HARNESS, RUN, busybox]
    async with running(*argv, stdout=asyncio.subprocess.PIPE) as harness:
        assert harness.stdout is not None
        assert await asyncio.wait_for(harness.stdout.readline(), 300) == b"ready\n"
        assert len(boxes_of(RUN)) == 1
        harness.send_signal(signal.SIGKILL)
    await until(lambda: not boxes_of(RUN), every=0.1)


@pytest.mark.usefixtures("capabilities_known")
async def test_a_box_whose_harness_never_speaks_ends_by_itself(busybox: str) -> None:
    client, python = engine.client(), await portable_python.mounted(RUN)
    name = f"air-silent-{os.getpid()}"
    arguments = container_spec.container(BoxSpec(image=busybox), name, RUN, python=python)
    made = client.create_container(**arguments)["Id"]
    try:
        client.start(made)  # never attached: its stdin is open and stays silent
        await until(lambda: not boxes_of(RUN), every=0.1)
    finally:
        engine.remove(made)


@pytest.mark.parametrize("delay", [0.0, 0.1, 0.3, 0.6, 1.0])
async def test_a_cancelled_start_leaves_nothing(busybox: str, delay: float) -> None:
    task = asyncio.create_task(open_box(BoxSpec(image=busybox), run=RUN))
    await asyncio.sleep(delay)
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        await task.result().close()
    assert not boxes_of(RUN)


# The volume.


@pytest.fixture
def volume() -> Iterator[str]:
    """A volume of the test's own, empty."""
    name = f"air-test-python-{os.getpid()}"
    engine.client().create_volume(name, labels={"air.test": "python"})
    yield name
    engine.client().remove_volume(name)


async def _holds(volume: str) -> list[str]:
    """What lies in a volume, and whether the Python in it runs."""
    mount = portable_python._mount(volume, "", read_only=True)
    python = container_spec.GuestPython(tuple(copy_python.command()), (mount,))
    async with await box_with_python(BoxSpec(), RUN, python) as box:
        assert (await box.exec("echo works", timeout=60)).text == "works\n"
        return (await box.exec(f"ls -A {copy_python.HOME}", timeout=60)).text.split()


async def test_of_several_that_copy_at_once_one_does(volume: str) -> None:
    await asyncio.gather(*(portable_python._copy(volume, "", RUN) for _ in range(3)))
    assert await _holds(volume) == ["lock", "python"]
    assert not boxes_of(RUN)


@pytest.mark.parametrize(
    "delay", [0.2, *(pytest.param(s, marks=pytest.mark.full) for s in (0.8, 2.5)), 1.5]
)
async def test_a_copy_that_is_killed_midway_is_made_again(volume: str, delay: float) -> None:
    copying = asyncio.create_task(portable_python._copy(volume, "", RUN))
    await asyncio.sleep(delay)
    copying.cancel()  # which kills the helper, whatever it does
    await asyncio.wait([copying])
    assert not boxes_of(RUN)
    await portable_python._copy(volume, "", RUN)
    assert await _holds(volume) == ["lock", "python"]


async def test_a_volume_that_was_emptied_is_filled_again(volume: str, busybox: str) -> None:
    mount = portable_python._mount(volume, "", read_only=True)
    python = container_spec.GuestPython(tuple(copy_python.command()), (mount,))
    with pytest.raises(BoxStartError) as caught:
        await box_with_python(BoxSpec(image=busybox), RUN, python)
    await portable_python.mounted(RUN)
    assert portable_python._READY
    assert await portable_python.learn_from_failed_start(busybox, python, str(caught.value))
    assert not portable_python._READY
    assert not boxes_of(RUN)


async def test_volumes_of_older_base_images_go_and_those_in_use_stay() -> None:
    client, labels = engine.client(), {portable_python.LABEL: "sha256:older"}
    free, used = (f"air-test-python-{kind}-{os.getpid()}" for kind in ("free", "used"))
    mount = portable_python._mount(used, "sha256:older", read_only=False)
    arguments = container_spec.container(BoxSpec(), f"air-test-{os.getpid()}", RUN)
    arguments["host_config"]["Mounts"] = [mount]
    made = client.create_container(**arguments)["Id"]
    try:
        client.create_volume(free, labels=labels)
        python = await portable_python.mounted(RUN)
        current = str(python.mounts[0]["Source"])
        portable_python._remove_others(current)
        found = client.volumes(filters={"label": portable_python.LABEL})["Volumes"]
        assert {row["Name"] for row in found} & {free, used, current} == {used, current}
    finally:
        engine.remove(made)
        client.remove_volume(used)
