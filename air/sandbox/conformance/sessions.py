"""Checks of `Shell`, which carries a shell's state, and of `stats`."""

from __future__ import annotations

from air.sandbox.conformance.check import Checks, expect, line, same
from air.sandbox.contract.box import Box
from air.sandbox.contract.shell import Shell
from air.sandbox.docker.engine_errors import outcome

CHECKS = Checks()


async def _says(shell: Shell, script: str) -> str:
    """What a script prints that must succeed, without white space around it."""
    result = await shell.exec(script, timeout=30)
    expect(result.ok, (script, result))
    return result.text.strip()


@CHECKS.add()
async def a_shell_keeps_directory_and_exports(box: Box) -> None:
    shell = Shell(box)
    await _says(shell, "mkdir -p 'a b/c'; cd 'a b'; export LINES_='1\n2' BYTE=$'\\xff' LC_ALL=C")
    same(shell.cwd, f"{box.workspace}/a b")
    same(await _says(shell, 'echo "$PWD|$LINES_|$LC_ALL"'), f"{box.workspace}/a b|1\n2|C")
    same(await _says(shell, 'printf %s "$BYTE" | od -An -tx1'), "ff")
    same(await _says(shell, "cd c; export PATH=/nowhere; unset BYTE"), "")
    same(await _says(shell, "echo $PATH ${BYTE-none}"), "/nowhere none")
    same(await _says(shell, "cd - >/dev/null; pwd"), f"{box.workspace}/a b")
    same(await line(box, "echo ${LINES_-fresh}; pwd"), f"fresh\n{box.workspace}")
    same(await _says(Shell(box), "echo ${LINES_-other}"), "other")


@CHECKS.add()
async def a_shell_keeps_nothing_else(box: Box) -> None:
    shell = Shell(box)
    script = (
        "f() { :; }; shopt -s expand_aliases; alias a=ls; V=1; set -ux; umask 077; ulimit -n 99"
    )
    result = await shell.exec(f"declare -F; {script}", timeout=20)
    same((result.code, result.stdout), (0, b""))
    told = await _says(shell, "type f a 2>/dev/null; echo ${V-none} $-; umask; declare -F")
    same(told, "none hBc\n0022")
    for script, code, out in (
        ("set -eu; echo out; false; echo not", 1, b"out\n"),
        ("set -e; ulimit -f 0; exit 3", 3, b""),
        ("exec 2>&-; set -C; trap 'exec 4>&1' DEBUG; (exit 3)", 3, b""),
    ):
        result = await shell.exec(script, timeout=20)
        same((script, result.code, result.stdout), (script, code, out))
    result = await shell.exec("echo before; broken(", timeout=20)
    expect(result.code == 2 and b"syntax error" in result.stderr, result)


@CHECKS.add()
async def a_killed_command_leaves_its_shell_as_it_was(box: Box) -> None:
    shell = Shell(box)
    await _says(shell, "cd /; export KEPT=1")
    for script, seconds in {
        "cd /tmp; export KEPT=2; sleep 60": 0.5,
        "cd /tmp; export KEPT=2; kill -9 $$": 20,
        "cd /tmp; export KEPT=2; exec true": 20,
        "cd /tmp; export KEPT=2; trap 'true' EXIT": 20,
    }.items():
        await shell.exec(script, timeout=seconds)
        same((script, await _says(shell, "echo $PWD $KEPT")), (script, "/ 1"))


@CHECKS.add()
async def a_damaged_shell_goes_on(box: Box) -> None:
    shell = Shell(box)
    await _says(shell, "cd /; export KEPT=1")
    place = "f=$(trap -p EXIT | grep -o '/[^ ]*air-shell-[0-9a-f]*' | head -1)"
    for damage in (
        "rm -f $f; mkdir $f",
        "rm -f $f; mkfifo $f; trap - EXIT",
        "rm -f $f; ln -s /dev/zero $f; trap - EXIT",
        "(while sleep 0.01; do echo garbage > $f; done) & exec true",
        "export BIG=$(head -c 2000000 /dev/zero | tr '\\0' x)",
    ):
        await shell.exec(f"cd /tmp; export KEPT=2; {place}; {damage}", timeout=20)
        same((damage, shell.cwd), (damage, "/"))
        result = await shell.exec("echo $PWD $KEPT", timeout=20)
        same((damage, result.text), (damage, "/ 1\n"))
    await _says(shell, "mkdir /tmp/gone; cd /tmp/gone; rmdir /tmp/gone")
    result = await shell.exec("pwd", timeout=20)
    expect("is gone" in result.text and result.text.endswith(f"{box.workspace}\n"), result)


@CHECKS.add()
async def a_shell_takes_long_scripts(box: Box) -> None:
    shell = Shell(box)
    result = await shell.exec(f"cd /\n: {'x' * 1_000_000}\nexport N=1; exit 7", timeout=60)
    same((result.code, result.text, shell.cwd), (7, "", "/"))
    same(await _says(shell, "echo $N"), "1")


@CHECKS.add()
async def outcomes_are_told_apart(box: Box) -> None:
    for command, wanted in (
        ("true", "ok"),
        ("exit 126", "failed"),
        ("no-such-program", "failed"),
        ("kill -9 $$", "killed"),
        (["no-such-program"], "not-started"),
        (["/etc/hostname"], "not-started"),
    ):
        same((command, outcome(await box.exec(command, timeout=20))), (command, wanted))
    same(outcome(await box.exec("sleep 60", timeout=0.3)), "timed-out")


@CHECKS.add()
async def stats_tell_what_is_used(box: Box) -> None:
    before = await box.stats()
    await box.exec("head -c 3000000 /dev/zero > file; (sleep 60; true) &", timeout=20)
    await box.exec("i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done", timeout=60)
    after = await box.stats()
    for name, least in (("processes", 2), ("workspace_bytes", 3_000_000), ("cpu_seconds", 0.02)):
        first, then = getattr(before, name), getattr(after, name)
        expect((first is None) == (then is None), (name, before, after))
        expect(first is None or then - first >= least, (name, before, after))
    if after.workspace_limit_bytes is not None:
        same(after.workspace_limit_bytes, box.spec.limits.disk_mb << 20)
    if after.memory_bytes is not None:
        expect(1 << 20 < after.memory_bytes < 1 << 30, after)


@CHECKS.add(container=True, memory_mb=64, disk_mb=16, shm_mb=8)
async def stats_tell_the_limit_of_memory(box: Box) -> None:
    """It has room for all that may lie in the folders, which are memory, too."""
    sizes = await line(
        box, f"df -Pk {box.workspace} /scratch /tmp /dev/shm | awk 'NR > 1 {{print $2}}'"
    )
    folders = sum(map(int, sizes.split())) << 10
    usage = await box.stats()
    same(usage.memory_limit_bytes, (box.spec.limits.memory_mb << 20) + folders)
