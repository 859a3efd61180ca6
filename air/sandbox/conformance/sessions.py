"""Conformance checks (tests in a real box) of `air.sandbox.contract.shell.Shell`, which runs commands in a
box one after another: only the working directory and exported variables carry over to the next command."""

from __future__ import annotations

from air.sandbox.conformance.check import Checks, expect, line, same
from air.sandbox.contract.box import Box
from air.sandbox.contract.shell import Shell

CHECKS = Checks()


async def _says(shell: Shell, script: str) -> str:
    """Runs a script in the shell and returns its output without surrounding white space; raises `Unmet` if
    the script fails."""
    result = await shell.exec(script, timeout=60)
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
    script = "shopt -s expand_aliases; alias a=ls; V=1; set -ux; umask 077; ulimit -n 99"
    result = await shell.exec(f"declare -F; f() {{ :; }}; {script}", timeout=60)
    same((result.code, result.stdout), (0, b""))
    output = await _says(shell, "type f a 2>/dev/null; echo ${V-none} $-; umask; declare -F")
    same(output, "none hBc\n0022")
    for script, code, out in (
        ("set -eu; echo out; false; echo not", 1, b"out\n"),
        ("set -e; ulimit -f 0; exit 3", 3, b""),
        ("exec 2>&-; set -C; trap 'exec 4>&1' DEBUG; (exit 3)", 3, b""),
    ):
        result = await shell.exec(script, timeout=60)
        same((script, result.code, result.stdout), (script, code, out))
    result = await shell.exec("echo before; broken(", timeout=60)
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
        await shell.exec(f"cd /tmp; export KEPT=2; {place}; {damage}", timeout=60)
        same((damage, shell.cwd), (damage, "/"))
        result = await shell.exec("echo $PWD $KEPT", timeout=60)
        same((damage, result.text), (damage, "/ 1\n"))
    await _says(shell, "mkdir /tmp/gone; cd /tmp/gone; rmdir /tmp/gone")
    result = await shell.exec("pwd", timeout=60)
    expect("is gone" in result.text and result.text.endswith(f"{box.workspace}\n"), result)


@CHECKS.add()
async def a_shell_takes_long_scripts(box: Box) -> None:
    shell = Shell(box)
    result = await shell.exec(f"cd /\n: {'x' * 1_000_000}\nexport N=1; exit 7", timeout=60)
    same((result.code, result.text, shell.cwd), (7, "", "/"))
    same(await _says(shell, "echo $N"), "1")
