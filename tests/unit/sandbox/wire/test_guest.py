"""The guest's source, its output cap, and the wire."""

from __future__ import annotations

import ast
import asyncio
import socket
import struct
import sys
from pathlib import Path

import pytest

from air.errors import BoxDiedError
from air.sandbox.docker import portable_python, snapshot_service
from air.sandbox.guest import copy_python, running_commands, spawn
from air.sandbox.guest.frames import MAX_HEADER, frame, take
from air.sandbox.wire import connection as protocol
from air.sandbox.wire.connection import Connection, interpreter, opening, program
from air.sandbox.wire.guest_box import BOUNDS

SOURCES = sorted(protocol.GUEST_FOLDER.glob("*.py"))
BOXES = (*protocol.GUEST, "launcher")
"""The modules that run in boxes; the others run in helpers."""
MODULES = (*BOXES, *snapshot_service.PROGRAM, *portable_python.PROGRAM)
GUEST = [path for path in SOURCES if path.stem in MODULES]


@pytest.mark.parametrize("path", GUEST, ids=lambda path: path.stem)
def test_the_guest_is_standard_library_and_python_3_8(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            ours = any(name.startswith(f"air.sandbox.guest.{part}") for part in MODULES)
            assert ours or name.split(".")[0] in sys.stdlib_module_names, name


def test_a_copy_of_python_holds_every_module_that_a_guest_imports() -> None:
    built_in = {"__future__", "collections", "gc", "os", "stat", "sys", "time"}
    found = set()
    for name in protocol.GUEST:
        for node in ast.walk(ast.parse((protocol.GUEST_FOLDER / f"{name}.py").read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add(str(node.module).split(".")[0])
    assert found - {"air", "typing"} - built_in <= set(copy_python.USED.split(","))


@pytest.mark.parametrize(
    ("programs", "shell"), [(["bash", "sh"], "bash"), (["sh"], "sh"), (["zsh"], "")]
)
def test_scripts_run_in_bash_else_in_sh(programs: list[str], shell: str, tmp_path: Path) -> None:
    for name in programs:
        (tmp_path / name).touch(mode=0o755)
    assert spawn.shell(f"/nowhere:{tmp_path}") == shell


@pytest.mark.parametrize(
    ("cap", "pieces", "kept"),
    [
        (10, [b"0123456789"], b"0123456789"),
        (10, [b"01234567890"], b"01234\n[... 1 bytes cut ...]\n67890"),
        (4, [b"a", b"b", b"c", b"d", b"e"], b"ab\n[... 1 bytes cut ...]\nde"),
        (3, [b"abcdef"], b"ab\n[... 3 bytes cut ...]\nf"),
        (1, [b"abc"], b"a\n[... 2 bytes cut ...]\n"),
        (0, [b"abc"], b"\n[... 3 bytes cut ...]\n"),
        (5, [], b""),
    ],
)
def test_output_keeps_its_head_and_tail(cap: int, pieces: list[bytes], kept: bytes) -> None:
    output = running_commands.Output(cap)
    for piece in pieces:
        output.add(piece)
    assert output.bytes() == kept


@pytest.mark.parametrize(
    ("before", "after"),
    [("ulimit -Sn 99", b"4096 4096 0 0"), ("ulimit -n 300", b"300 300 0 0")],
)
async def test_a_guest_bounds_itself_within_the_limits_that_it_finds(
    before: str, after: bytes
) -> None:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", f'{before}; exec "$@"', "sh", *interpreter(sys.executable)),
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
    )
    assert process.stdin
    assert process.stdout
    guest = Connection(process.stdout, process.stdin, stderr=process.stderr, name="bounded")
    config = {"roots": [], "remove": None, "bounds": BOUNDS, "rlimits": [], "env": {}}
    process.stdin.write(opening(config))
    await guest.ready(seconds=60)
    script = "echo $(ulimit -Sn) $(ulimit -Hn) $(ulimit -Sc) $(ulimit -Hc)"
    request = {"op": "exec", "script": script, "timeout": 60, "max_bytes": 100}
    _, body = await guest.request({**request, "cwd": "/", "env": {}})
    assert body.strip() == after
    await guest.close()
    assert await asyncio.wait_for(process.wait(), 60) == 0


async def test_a_guest_waits_for_a_configuration_that_comes_late() -> None:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *interpreter(sys.executable), stdin=pipe, stdout=pipe, stderr=pipe
    )
    assert process.stdin
    assert process.stdout
    guest = Connection(process.stdout, process.stdin, stderr=process.stderr, name="late")
    config = {"roots": [], "remove": None, "bounds": BOUNDS, "rlimits": [], "env": {}}
    process.stdin.write(program())
    await process.stdin.drain()
    await asyncio.sleep(3)
    process.stdin.write(frame(config))
    await guest.ready(seconds=60)
    await guest.close()
    assert await asyncio.wait_for(process.wait(), 60) == 0


def _emptied(source: str) -> str:
    """What `source` says, with nothing in its docstrings, and in which line each part of it does."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            value.value = ""
    lines = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    return f"{lines} {ast.dump(tree)}"


@pytest.mark.parametrize("path", GUEST, ids=lambda path: path.stem)
def test_a_stripped_source_says_the_same_in_the_same_lines(path: Path) -> None:
    here = path.read_text(encoding="utf-8")
    sent = protocol.stripped(here)
    assert _emptied(sent) == _emptied(here)
    docstring = ast.get_docstring(ast.parse(here), clean=False)
    assert docstring
    assert docstring not in sent
    assert "  # " not in sent
    assert len(sent) < len(here)


@pytest.mark.parametrize(
    ("source", "left"),
    [
        ('"""A.\n\nB."""\nfrom __future__ import annotations\n',
         '""\n\n\nfrom __future__ import annotations\n'),
        ('def f():\n    """A."""\n', 'def f():\n    ""\n'),
        ('# A\n\nx = "# A"  # A\n# A', '\n\nx = "# A"\n'),
        ('class A:\n    # A\n    """ü\n    """\n    y = """B"""\n',
         'class A:\n\n    ""\n\n    y = """B"""\n'),
        ("x = 1\n'A'\nr'A'\nx", "x = 1\n\"\"\nr'A'\nx"),
        ('x = (  # A\n  "A"  # A\n  "B"\n)\n', 'x = (\n  "A"\n  "B"\n)\n'),
        ('x = [\n"A"]\ny = \\\n"A"\n', 'x = [\n"A"]\ny = \\\n"A"\n'),
        ('"A".join(x)\n"A" "B"\nf"{1}"\n', '"A".join(x)\n"A" "B"\nf"{1}"\n'),
        ('x = "\u2028 \x0c"  # A\ny = "# A"\n"""A\n"""\n', 'x = "\u2028 \x0c"\ny = "# A"\n""\n\n'),
        ("", ""),
    ],
)  # fmt: skip
def test_only_comments_and_strings_that_are_statements_are_stripped(source: str, left: str) -> None:
    assert protocol.stripped(source) == left
    assert _emptied(left).partition("]")[2] == _emptied(source).partition("]")[2]


def test_a_compiled_program_and_its_frames_fit_into_a_pipe() -> None:
    """Nobody may have to wait for the harness's event loop to send the rest."""
    assert len(protocol.compiled(BOXES)) + 8_000 < 1 << 16
    assert len(protocol.program()) + 8_000 < 1 << 16


def test_frames_survive_being_cut_anywhere() -> None:
    sent = [({"id": 1, "name": "ü\udcff\n"}, b"\0" * 9), ({}, b""), ({"id": 2}, b"x")]
    stream, buffer, got = b"".join(frame(*reply) for reply in sent), bytearray(), []
    for byte in stream:
        buffer.append(byte)
        while reply := take(buffer):
            got.append(reply)
    assert got == sent
    assert not buffer


@pytest.mark.parametrize(
    "garbage",
    [b"\xff" * 8, b"\0\0\0\2\0\0\0\0[]", b"\0\0\0\3\0\0\0\0{{{", b"\0\0\0\2\0\0\0\0\xff\xff"],
)
def test_garbage_is_no_frame(garbage: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        take(bytearray(garbage))


def test_too_large_a_request_is_refused() -> None:
    with pytest.raises(ValueError, match="too large"):
        frame({"script": "x" * (MAX_HEADER + 1)})


def _mixed(kind: int, data: bytes) -> bytes:
    return struct.pack(">BxxxI", kind, len(data)) + data


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "its stream ended"),
        (_mixed(1, b"\xff" * 12), "impossible lengths"),
        (_mixed(2, b"Traceback\n  ...\nMemoryError\n"), "MemoryError"),
        (_mixed(1, frame({"op": "bye", "reason": "over"})), "over"),
        (_mixed(1, b"12345")[:-2], "its stream broke"),
        (b"\1\0", "its stream broke"),
    ],
)
async def test_a_stream_that_ends_tells_everyone_why(answer: bytes, reason: str) -> None:
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    connection = Connection(reader, writer, stderr=None, name="b")
    waiting = asyncio.create_task(connection.request({"op": "exec"}))
    await asyncio.sleep(0)
    with theirs:
        await asyncio.to_thread(theirs.recv, 1000)
        theirs.sendall(answer)
    with pytest.raises(BoxDiedError, match=reason):
        await waiting
    with pytest.raises(BoxDiedError, match=reason):
        await connection.request({"op": "exec"})
    with pytest.raises(BoxDiedError, match=reason):
        await connection.ready(seconds=1)
    await connection.close()


async def test_docker_stream_pieces_are_put_together() -> None:
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    connection = Connection(reader, writer, stderr=None, name="b")
    waiting = asyncio.create_task(connection.request({"op": "exec"}))
    await asyncio.sleep(0)
    answer = frame({"id": 1, "code": 0}, b"body")
    with theirs:
        for start in range(0, len(answer), 3):
            theirs.sendall(_mixed(2, b"noise") + _mixed(1, answer[start : start + 3]))
        assert await waiting == ({"id": 1, "code": 0}, b"body")
    await connection.close()


async def test_the_first_frame_of_a_turn_goes_at_once_and_the_others_together() -> None:
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    connection = Connection(reader, writer, stderr=None, name="b")
    theirs.setblocking(False)
    with theirs:
        for turn in range(2):
            waiting = [asyncio.create_task(connection.request({"op": "exec"})) for _ in range(5)]
            await asyncio.sleep(0)
            first = bytearray(theirs.recv(1000))
            assert take(first) == ({"op": "exec", "id": 5 * turn + 1}, b"")
            assert not first
            await asyncio.sleep(0)
            rest = bytearray(theirs.recv(1000))
            for ident in range(5 * turn + 2, 5 * turn + 6):
                assert take(rest) == ({"op": "exec", "id": ident}, b"")
            theirs.sendall(b"".join(_mixed(1, frame({"id": 5 * turn + n})) for n in range(1, 6)))
            await asyncio.gather(*waiting)
    await connection.close()
