"""Conformance checks (tests in a real box) of the file operations of `Box`, of open boxes (containers whose
commands may write everywhere and run as several users; see `BoxSpec.open`), and of `Box.freeze`."""

from __future__ import annotations

import asyncio
import contextlib
import time

from air.errors import BoxCommandError, BoxDiedError
from air.sandbox import open_box
from air.sandbox.conformance.check import Checks, Unmet, expect, line, refused, same, sh
from air.sandbox.conformance.commands import WITHOUT_FIRST_THREAD
from air.sandbox.contract.box import Box

CHECKS = Checks()


@CHECKS.add()
async def entries_are_described_listed_moved_and_removed(box: Box) -> None:
    await sh(
        box, "mkdir -p a/b; printf 12345 > a/b/c; chmod 640 a/b/c; ln -s b a/link; ln -s no a/bad"
    )
    entry = await box.stat("a/b/c")
    same((entry.path, entry.name, entry.kind, entry.size), ("a/b/c", "c", "file", 5))
    same((entry.mode, entry.link), (0o640, ""))
    expect(abs(entry.modified - time.time()) < 3600, entry)
    kinds = [(i.path, i.kind, i.link) for i in await box.list("a")]
    bad = ("a/bad", "other", "no")
    same(kinds, [("a/b", "folder", ""), bad, ("a/link", "folder", "b")])
    same([i.path for i in await box.list("a", depth=2)], ["a/b", "a/b/c", "a/bad", "a/link"])
    same((await box.rename("a/b/c", "new/d")).path, "new/d")
    same(await box.read("new/d"), b"12345")
    same([await box.make_folder("new/e/f"), await box.make_folder("new/e/f")], [True, False])
    await box.remove("a")
    same(
        [i.path for i in await box.list(".", depth=9)], ["./new", "./new/d", "./new/e", "./new/e/f"]
    )
    with refused("No such file"):
        await box.stat("a")
    with refused("No such file"):
        await box.remove("a")
    with refused("not a folder"):
        await box.list("new/d")
    with refused("not a folder"):
        await box.make_folder("new/d")
    with refused("No such file"):
        await box.rename("a", "b")


@CHECKS.add()
async def no_entry_operation_leaves_a_closed_box(box: Box) -> None:
    await sh(box, "ln -s /etc out; ln -s /etc/passwd file; mkfifo pipe")
    for path in ("/etc/passwd", "../../etc/passwd", "out/passwd", "/proc/self/environ"):
        for use in (box.stat(path), box.list(path), box.remove(path), box.make_folder(path)):
            with refused():
                await use
        with refused():
            await box.rename(path, "x")
        with refused():
            await box.rename("file", path)
    with refused():
        await box.list("out")
    await box.remove("out")
    await box.remove("file")
    await box.remove("pipe")
    same(await line(box, "ls -A; ls /etc/passwd"), "/etc/passwd")
    for root in (".", "/workspace", "/tmp"):
        with refused("cannot be"):
            await box.remove(root)


@CHECKS.add(open=True, container=True)
async def an_open_box_has_users(box: Box) -> None:
    same(box.workspace, "/home/user")
    same(await line(box, "id -un; pwd; echo ~ $USER"), "user\n/home/user\n/home/user user")
    same(await _said(box, "id -u; echo ~; pwd", "root"), (0, "0\n/root\n/home/user\n"))
    same(await _said(box, "id -u", "4321"), (0, "4321\n"))
    same((await _said(box, "touch /usr/mine", None))[0], 1)
    same((await _said(box, "touch /usr/mine; chown user /usr/mine", "root"))[0], 0)
    same((await _said(box, "echo x > /usr/mine", None))[0], 0)
    try:
        await box.start("true", user="no-such-user")
    except BoxCommandError as error:
        expect("no user" in str(error), str(error))
    else:
        raise Unmet("a command ran as a user whom the box does not have")


@CHECKS.add(open=True, container=True)
async def files_of_an_open_box_are_those_of_the_named_user(box: Box) -> None:
    await box.write("/root/deep/a", b"secret", user="root")
    await _said(box, "chmod 700 /root", "root")
    same(await box.read("/root/deep/a", user="root"), b"secret")
    with refused("Permission denied"):
        await box.read("/root/deep/a")
    for use in (box.stat("/root/deep/a"), box.remove("/root/deep"), box.list("/root/deep")):
        with refused("Permission denied"):
            await use
    with refused("Permission denied"):
        await box.write("/usr/x", b"")
    with refused("Permission denied"):
        await box.make_folder("/usr/y")
    same((await box.stat("/root/deep/a", user="root")).owner, "root")
    await box.write("mine", b"1")
    same((await box.stat("/home/user/mine")).owner, "user")
    same((await box.stat("/etc/os-release")).link, "../usr/lib/os-release")
    expect(b"ID=" in await box.read("/etc/os-release"), "a link is not followed")
    await sh(box, "ln -s mine link; chmod 600 mine")
    await box.write("link", b"2")
    same(await line(box, "readlink link; cat mine; stat -c %a mine"), "mine\n2600")
    with refused("no user"):
        await box.read("mine", user="no-such-user")


@CHECKS.add(open=True, container=True)
async def root_of_an_open_box_reaches_neither_out_nor_the_guest(box: Box) -> None:
    bounding = int(await line(box, "awk '/CapBnd/ {print $2}' /proc/self/status"), 16)
    same(bounding & ~0b100_1111_1011, 0)
    for script in (
        "mount -t tmpfs none /mnt",
        "unshare -m true",
        "cat /proc/1/environ",
        "cat /proc/1/mem",
        "echo x > /proc/1/fd/1",
        "readlink /proc/1/fd/0",
        "mknod /dev/disk b 8 0",
        "echo 1 > /proc/sys/kernel/panic",
        "python3 -c 'import os; os.setuid(65532); open(\"/proc/1/mem\")'",
        "chroot /tmp true",
    ):
        code, text = await _said(box, script, "root")
        expect(code != 0, (script, text))
    await _said(box, "kill -9 1; kill -STOP 1; kill -TERM 1; true", "root")
    for path in ("/proc/self/mem", "/proc/1/mem", "/proc/self/fd/0", "/proc/1/fd/1"):
        with refused():
            await box.write(path, b"x" * 100, user="root")
        with refused():
            await box.read(path, user="root")
    same(await line(box, "echo on"), "on")


@CHECKS.add(open=True, container=True)
async def an_open_box_withstands_what_root_does_to_its_tables(box: Box) -> None:
    spoil = "rm /etc/passwd /etc/group; mkfifo /etc/passwd; ln -s /dev/zero /etc/group"
    same((await _said(box, spoil, "root"))[0], 0)
    same(await _said(box, "id -u", "1234"), (0, "1234\n"))
    try:
        await box.start("true", user="root")
    except BoxCommandError as error:
        expect("no user" in str(error), str(error))
    await _said(box, "rm -r /usr/lib/python3*; rm /bin/bash", "0")
    same((await box.stat("/etc/passwd", user="0")).kind, "other")
    await box.write("/etc/hello", b"1", user="0")
    port = await box.forward(0, ("127.0.0.1", 1))
    expect(port > 0, port)


@CHECKS.add(open=True, container=True)
async def a_timeout_of_one_user_leaves_the_orphans_of_others_alone(box: Box) -> None:
    same((await _said(box, "(setsid sleep 63.5 >/dev/null 2>&1 &)", "root"))[0], 0)
    command = await box.start("(setsid sleep 63.6 &) ; sleep 60", timeout=0.5)
    expect((await command.wait()).timed_out, "no timeout")
    left = "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done 2>&1 | grep -o '^sleep 63.*'"
    same((await line(box, left)).strip(), "sleep 63.5")


@CHECKS.add()
async def many_files_are_read_at_once(box: Box) -> None:
    await sh(
        box,
        "mkdir -p a/b empty; printf 1 > a/b/one; printf 22 > a/two; chmod 750 a/two; ln -s b a/link;"
        "mkfifo a/pipe; head -c 600000 /dev/zero > large; : > a/none; ln -s /etc out",
    )
    entries = await box.gather(["a", "missing", "a/missing/x", "large", "empty", "out"])
    kinds = [(entry.path, entry.kind, entry.link) for entry in entries]
    below = [("a/b", "folder", ""), ("a/b/one", "file", ""), ("a/link", "link", "b")]
    below += [("a/none", "file", ""), ("a/pipe", "other", ""), ("a/two", "file", "")]
    ends = [("large", "file", ""), ("empty", "folder", ""), ("out", "link", "/etc")]
    same(kinds, [("a", "folder", ""), *below, *ends])
    found = {entry.path: entry for entry in entries}
    same((found["a/b/one"].data, found["a/two"].data, found["a/two"].mode), (b"1", b"22", 0o750))
    same((found["a/none"].data, found["large"].data), (b"", bytes(600_000)))
    same([entry.path for entry in await box.gather(["a", "a/two"], tree=False)], ["a", "a/two"])
    with refused("larger than 3 bytes"):
        await box.gather(["a/b/one", "a/two", "large"], max_bytes=3)
    same(len(await box.gather(["a"], max_bytes=3)), 7)
    with refused("too many"):
        await box.gather(["a"], max_entries=6)
    await sh(box, "truncate -s 200M a/sparse")
    with refused("larger than"):
        await box.gather(["a"])


@CHECKS.add()
async def all_processes_are_ended(box: Box) -> None:
    daemon = "(setsid sh -c 'trap  TERM HUP; (while :; do date +%s%N > now; sleep 0.01; done) &' &)"
    await sh(box, f"{daemon}; {daemon}; until [ -s now ]; do sleep 0.02; done")
    command = await box.start("sleep 600")
    stopped = await box.start("kill -STOP $$; echo never")
    await box.end_processes()
    for each in (command, stopped):
        same((await each.wait()).signal, 9)
    same(list(await box.commands()), [])
    before = await box.read("now")
    await asyncio.sleep(0.3)
    same(await box.read("now"), before)
    same(await line(box, "echo on"), "on")


@CHECKS.add()
async def a_frozen_box_stands_still_and_goes_on(box: Box) -> None:
    command = await box.start(
        "echo up; while :; do date +%s%N > now; sleep 0.01; done", timeout=600
    )
    short = await box.start("sleep 0.3; echo late", timeout=1.5)
    stopped = await box.start("kill -STOP $$; echo never")
    await anext(command.output())
    await sh(box, "until [ -s now ]; do sleep 0.02; done")
    await sh(box, f"until grep -q '^State:.T' /proc/{stopped.pid}/status; do sleep 0.02; done")
    await box.freeze()
    await box.freeze()
    before = await box.read("now")
    await asyncio.sleep(2.0)
    same(await box.read("now"), before)
    for use in (box.exec("true", timeout=9), box.start("true")):
        try:
            await use
        except BoxCommandError as error:
            expect("frozen" in str(error), str(error))
        else:
            raise Unmet("a command ran in a frozen box")
    await box.thaw()
    await box.thaw()
    same([piece async for piece in short.output()], [("stdout", b"late\n")])
    expect(not (await short.wait()).timed_out, "its timeout went on while it was frozen")
    await sh(box, 'a=$(cat now); until [ "$(cat now)" != "$a" ]; do sleep 0.02; done')
    state = f"grep -c '^State:.T' /proc/{stopped.pid}/status"
    same(await line(box, state), "1")  # a process that stopped itself is not continued
    for each in (command, stopped):
        await each.signal(9)
    running = asyncio.create_task(box.exec("sleep 60", timeout=60))
    await asyncio.sleep(0)
    try:
        await box.freeze()
    except BoxCommandError:
        running.cancel()
    else:
        raise Unmet("a box froze although `exec` runs a command")


@CHECKS.add()
async def a_copy_leaves_the_box_alive(box: Box) -> None:
    await sh(box, "mkdir -p a/b; printf 1 > a/b/c; chmod 750 a/b/c; ln -s c a/b/link")
    command = await box.start("until [ -e go ]; do sleep 0.02; done; cat a/b/c", timeout=600)
    async with await box.copy() as snapshot:
        await box.write("a/b/c", b"2")
        await box.write("go", b"")
        same([piece async for piece in command.output()], [("stdout", b"2")])
        for _ in range(2):
            async with await open_box(box.spec) as other:
                await other.restore(snapshot)
                same(await line(other, "cat a/b/link; stat -c %a a/b/c; ls"), "1750\na")
                await other.write("more", b"")


@CHECKS.add(container=True)
async def a_workspace_that_commands_made_unreadable_does_not_end_the_box(box: Box) -> None:
    await sh(box, "mkdir shut; chmod 000 shut")
    with contextlib.suppress(BoxCommandError):  # the user that copies may have the right to read it
        await (await box.copy()).close()
    await sh(box, "rmdir shut")
    async with await box.copy():
        pass


@CHECKS.add(container=True)
async def a_process_that_waits_in_the_kernel_does_not_keep_a_box_from_freezing(box: Box) -> None:
    spawn = "os.posix_spawn('/bin/true', ['true'], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, 'pipe', 0, 0)])"
    script = f"import os; os.mkfifo('pipe'); print('on', flush=True); {spawn}; print('off')"
    command = await box.start(["python3", "-c", script], timeout=600)
    output = command.output()
    same(await anext(output), ("stdout", b"on\n"))
    await sh(box, f"until grep -q '^State:.D' /proc/{command.pid}/status; do sleep 0.02; done")
    await box.freeze()
    await box.thaw()
    await sh(box, ": > pipe")  # a write could come after its reader has ended
    same(await anext(output), ("stdout", b"off\n"))


@CHECKS.add()
async def a_program_whose_first_thread_has_ended_stands_still_in_a_frozen_box(box: Box) -> None:
    command = await box.start(["python3", "-c", WITHOUT_FIRST_THREAD], timeout=600)
    await sh(box, f"until grep -q '^State:.Z' /proc/{command.pid}/status; do sleep 0.02; done")
    await sh(box, "until [ -s beat ]; do sleep 0.02; done")
    await box.freeze()
    before = await box.read("beat")
    await asyncio.sleep(0.3)
    same(await box.read("beat"), before)
    await box.thaw()
    await sh(box, 'a=$(cat beat); until [ "$(cat beat)" != "$a" ]; do sleep 0.02; done')
    await command.signal(9)


_TRACE_EACH_OTHER = """
import ctypes, os, threading, time

libc = ctypes.CDLL(None, use_errno=True)
ATTACH, SET_TRACER, ANY = 16, 0x59616d61, ctypes.c_ulong(-1)
libc.prctl(SET_TRACER, ANY, 0, 0, 0)
parent = os.getpid()
child = os.fork()
if child == 0:
    libc.prctl(SET_TRACER, ANY, 0, 0, 0)
other, name = (child, 'parent') if child else (parent, 'child')

def trace():
    time.sleep(1)  # until the first thread waits in pause() and no longer holds the interpreter's lock
    open(name + '.ready', 'w').close()
    while len([file for file in os.listdir() if file.endswith('.ready')]) < 2:
        time.sleep(0.01)
    if libc.ptrace(ATTACH, other, None, None) != 0:
        return open('refused', 'w').write(str(ctypes.get_errno()))
    while True:
        with open(name, 'w') as file:
            file.write(str(time.monotonic_ns()))
        time.sleep(0.01)

threading.Thread(target=trace).start()
libc.pause()
"""
"""A Python program: two processes, in each of which a thread traces the first thread of the other process.
The kernel says of both that a tracer has stopped them, although their other threads run."""


@CHECKS.add()
async def processes_that_trace_each_other_stand_still_in_a_frozen_box(box: Box) -> None:
    command = await box.start(["python3", "-c", _TRACE_EACH_OTHER], timeout=600)
    await sh(box, "until [ -s refused ] || [ -s parent -a -s child ]; do sleep 0.02; done")
    if "refused" not in await line(box, "ls"):  # some machines allow no tracing
        traced = f"until grep -q '^State:.t' /proc/{command.pid}/status; do sleep 0.02; done"
        await sh(box, traced)
        await box.freeze()
        before = [await box.read(name) for name in ("parent", "child")]
        await asyncio.sleep(0.3)
        same([await box.read(name) for name in ("parent", "child")], before)
        await box.thaw()
        await sh(box, 'a=$(cat child); until [ "$(cat child)" != "$a" ]; do sleep 0.02; done')
    await command.signal(9)


@CHECKS.add(open=True, container=True)
async def a_copy_of_an_open_box_has_the_files_of_all_its_users(box: Box) -> None:
    await box.write("of/root", b"1", mode=0o600, user="root")
    await box.write("mine", b"2")
    async with await box.copy() as snapshot, await open_box(box.spec) as other:
        await other.restore(snapshot)
        same(await other.read("of/root", user="root"), b"1")
        same([(await other.stat(path)).owner for path in ("of/root", "mine")], ["root", "user"])
    async with await open_box(box.spec) as third:
        try:
            await third.restore(snapshot)
        except BoxDiedError:
            return
        raise Unmet("a box was restored from a snapshot that had been closed")


async def _said(box: Box, script: str, user: str | None) -> tuple[int, str]:
    """Runs a script in the box as the given user (None: the box's own user). Returns its exit status and its
    output."""
    command = await box.start(["sh", "-c", script], user=user, timeout=60)
    text = b"".join([data async for _, data in command.output()]).decode("utf-8", "replace")
    return (await command.wait()).code, text
