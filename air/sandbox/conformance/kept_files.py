"""Conformance checks (tests of the interface `Box` in a real box) for boxes with the setting `OpenBox.keep`.
In such a box, commands may write everywhere, and the workspace begins with the files that the image has
there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from air.errors import AirError, BoxCommandError, BoxEndedError, BoxStartError, ConfigError
from air.sandbox import open_box
from air.sandbox.conformance.check import Checks, Unmet, expect, line, refused, same, sh
from air.sandbox.contract.box import Box, OpenBox

CHECKS = Checks()


@CHECKS.add(keep=True, container=True)
async def a_kept_box_is_as_its_image(box: Box) -> None:
    assert box.spec.open
    expect(box.spec.open.workspace == box.workspace, box.spec.open)
    same(await line(box, "pwd; id -u"), f"{box.workspace}\n0")
    await sh(box, "echo 1 > /var/mine; echo 2 > /tmp/mine; echo 3 > mine; rm /etc/issue")
    same(await box.read("/var/mine"), b"1\n")
    await box.write("/new/folder/file", b"x")
    same(await line(box, "cat /new/folder/file"), "x")
    async with await open_box(box.spec) as other:
        await sh(other, "! ls mine /var/mine /tmp/mine /new; ls /etc/issue")


@CHECKS.add(keep=True, container=True)
async def a_kept_box_has_any_workspace_and_user_of_its_image(box: Box) -> None:
    for workspace, user, wanted in (
        ("/", "root", "/\n0 /root"),
        ("/var/www", "1000", "/var/www\n1000 /home/agent"),
        ("/root", "", "/root\n0 /root"),
        ("/app/new", "agent", "/app/new\n1000 /home/agent"),
    ):
        settings = OpenBox(keep=True, workspace=workspace, user=user)
        async with await open_box(box.spec.model_copy(update={"open": settings})) as other:
            same(await line(other, "pwd; echo $(id -u) ~"), wanted)
            same(other.workspace, workspace)
            if workspace == "/app/new":
                await sh(other, "touch mine")
                with refused("Permission denied"):
                    await other.write("/etc/mine", b"")
                await other.write("/etc/mine", b"", user="0")


@CHECKS.add(keep=True, container=True)
async def a_user_whom_the_image_lacks_is_refused(box: Box) -> None:
    with _raises(BoxCommandError, "no user"):
        await box.start("true", user="no-such-user")
    settings = OpenBox(keep=True, user="no-such-user")
    with _raises(BoxStartError, "no user 'no-such-user'"):
        await open_box(box.spec.model_copy(update={"open": settings}))


@CHECKS.add(keep=True, container=True)
async def folders_of_a_kept_box_are_made_and_emptied_by_root(box: Box) -> None:
    for folder in ("/logs/agent", "/logs/verifier", "/tests", "/solution"):
        await box.write(f"{folder}/old", b"1", user="0")
        await box.remove(folder, user="0")
        same(await box.make_folder(folder, user="0"), True)
        same(list(await box.list(folder, user="0")), [])


@CHECKS.add(keep=True, container=True)
async def root_of_a_kept_box_reaches_neither_out_nor_the_guest(box: Box) -> None:
    bounding = int(await line(box, "awk '/CapBnd/ {print $2}' /proc/self/status"), 16)
    same(bounding & ~0b100_1111_1011, 0)
    for script in (
        "mount -t tmpfs none /mnt",
        "umount /.air",
        "touch /.air/x",
        "unshare -m true",
        "cat /proc/1/environ",
        "cat /proc/1/mem",
        "echo x > /proc/1/fd/1",
        "readlink /proc/1/fd/0",
        "mknod disk b 8 0",
        "mknod white c 0 0",
        "echo 1 > /proc/sys/kernel/panic",
        "chroot /tmp true",
    ):
        result = await box.exec(script, timeout=60)
        expect(not result.ok, (script, result))
    await box.exec("kill -9 1; kill -STOP 1; kill -TERM 1", timeout=60)
    for path in ("/proc/self/mem", "/proc/1/mem", "/proc/self/fd/0", "/proc/1/fd/1"):
        with refused():
            await box.write(path, b"x" * 100)
        with refused():
            await box.read(path)
    await sh(box, "rm -rf /usr/lib/python3* /etc/passwd; ln -s /dev/zero /etc/passwd")
    same(await line(box, "echo on"), "on")
    same((await box.stat("/etc/passwd")).link, "/dev/zero")


@CHECKS.add(keep=True, container=True)
async def the_engine_finds_what_commands_changed(box: Box) -> None:
    settings = OpenBox(keep=True, workspace="/usr/share")
    async with await open_box(box.spec.model_copy(update={"open": settings})) as other:
        await sh(
            other,
            "mkdir -p mine/in; echo 1 > mine/in/a; echo 2 >> base-files/motd; rm -r common-licenses;"
            "mkdir common-licenses; ln -s /etc/passwd mine/link; mkfifo mine/pipe; echo > /etc/out;"
            "touch -r base-files/profile base-files/motd; chmod 700 base-files/profile",
        )
        changes = {change.path: change.kind for change in await other.changed()}
        top = "/usr/share/"
        for name in ("mine", "mine/in", "mine/in/a", "mine/link", "mine/pipe"):
            same(changes[top + name], "added")
        for name in ("base-files/motd", "base-files/profile"):
            same(changes[top + name], "changed")
        gone = [changes.get(top + name) for name in ("common-licenses", "common-licenses/GPL-2")]
        expect("deleted" in gone, changes)
        expect("/etc/out" not in changes and top + "base-files" not in changes, changes)
        paths = [path for path, kind in changes.items() if kind != "deleted"]
        entries = {entry.path: entry for entry in await other.gather(paths, tree=False)}
        same(entries[top + "mine/in/a"].data, b"1\n")
        same(entries[top + "mine/link"].link, "/etc/passwd")
        same(entries[top + "mine/pipe"].kind, "other")
        same(entries[top + "base-files/profile"].mode, 0o700)
        with refused("more than 4 files"):
            await other.changed("/", most=4)


@CHECKS.add(keep=True, container=True, disk_mb=16)
async def what_commands_write_to_the_engines_disk_ends_the_box(box: Box) -> None:
    result = await box.exec("dd if=/dev/zero of=/tmp/large bs=1M count=20", timeout=60)
    expect(not result.ok, "a file was larger than the disk")
    await sh(box, "rm /tmp/large")
    with _raises(BoxEndedError, "its commands wrote"):
        async with box.attributing():
            await box.exec(
                "for i in a b; do head -c 15M /dev/zero > /var/$i; done; sleep 600", timeout=600
            )


@CHECKS.add(keep=True, container=True, disk_mb=4)
async def too_many_new_files_end_the_box(box: Box) -> None:
    with _raises(BoxEndedError, "files, and may write 1024"):
        async with box.attributing():
            await box.exec("for i in $(seq 2000); do : > /var/new$i; done; sleep 600", timeout=600)


@CHECKS.add(keep=True, container=True)
async def a_kept_box_has_no_snapshots(box: Box) -> None:
    for taken in (box.snapshot(), box.copy()):
        with _raises(ConfigError, "no snapshots"):
            await taken
    same(await line(box, "echo on"), "on")


@contextmanager
def _raises(kind: type[AirError], words: str) -> Iterator[None]:
    """Context manager: raises `Unmet` unless the block raises an error of the type `kind` whose text contains
    `words`."""
    try:
        yield
    except kind as error:
        expect(words in str(error), str(error))
    else:
        raise Unmet(f"nothing was refused ({words})")
