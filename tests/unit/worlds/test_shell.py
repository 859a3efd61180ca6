"""The agent's shell in a real process box: what lasts from one command to the next, and what cannot harm."""

from __future__ import annotations

import asyncio

import pytest

from air.sandbox.contract.box import Box, ExecResult
from air.sandbox.contract.shell import STATE_BYTES, Shell


@pytest.fixture
def shell(box: Box) -> Shell:
    return Shell(box)


async def run(shell: Shell, script: str, seconds: float = 60) -> ExecResult:
    return await shell.exec(script, timeout=seconds, max_bytes=10_000)


async def text(shell: Shell, script: str) -> str:
    return (await run(shell, script)).text.strip()


async def test_working_directory_and_exported_variables_last(shell: Shell, box: Box) -> None:
    assert await text(shell, "pwd") == box.workspace
    assert await text(shell, "mkdir -p 'a b'; cd 'a b'; export X=$'1\n2' E=; y=3") == ""
    assert shell.cwd == f"{box.workspace}/a b"
    assert await text(shell, 'pwd; echo "$X|${E-unset}|${y-unset}"') == (
        f"{box.workspace}/a b\n1\n2||unset"
    )
    assert await text(shell, "cd -; pwd") == f"{box.workspace}\n{box.workspace}"
    assert await text(shell, "unset X; echo ${X-gone}") == "gone"
    assert await text(shell, "echo ${X-gone}") == "gone"


async def test_exit_status_and_line_numbers_are_the_script_s(shell: Shell) -> None:
    assert (await run(shell, "exit 3")).code == 3
    assert (await run(shell, "true\nfalse")).code == 1
    failed = await run(shell, "true\nno-such-program")
    assert failed.code == 127
    assert "bash: line 2: no-such-program: command not found" in failed.text
    broken = await run(shell, "echo a\nif then")
    assert broken.code == 2
    assert "line 2" in broken.text
    assert "trap" not in broken.text


async def test_standard_input_is_empty(shell: Shell) -> None:
    for _ in range(2):
        assert await text(shell, "cat; cat /dev/stdin; python3; wc -c") == "0"


async def test_exit_and_set_e_end_only_their_own_script(shell: Shell) -> None:
    assert (await run(shell, "set -eux; cd /usr; false; echo not here")).code == 1
    assert shell.cwd == "/usr"
    assert await text(shell, "false; echo here ${nothing-}") == "here"


@pytest.mark.parametrize("spoil", ["exec true", "trap 'echo bye' EXIT", "kill -9 $$"])
async def test_a_script_that_leaves_nothing_leaves_what_was(
    shell: Shell, box: Box, spoil: str
) -> None:
    await run(shell, "mkdir d; cd d; export X=1")
    await run(shell, f"cd /; export X=2; {spoil}")
    assert await text(shell, "pwd; echo $X") == f"{box.workspace}/d\n1"


async def test_a_working_directory_that_is_gone_is_told_and_left(shell: Shell, box: Box) -> None:
    await run(shell, "mkdir d; cd d; rmdir ../d")
    gone = await run(shell, "pwd")
    assert gone.text == (
        f"{box.workspace}/d is gone, this runs in {box.workspace}\n{box.workspace}\n"
    )
    assert await text(shell, "pwd") == box.workspace


@pytest.mark.parametrize(
    "harm",
    [
        "export PATH=/nowhere",
        "export LD_PRELOAD=/nowhere.so",
        "echo 'exit 9' > rc; export BASH_ENV=$PWD/rc",
        "set -C",
        "exec 1>&- 2>&-",
        "export BIG=$(head -c 300000 /dev/zero | tr '\\0' x)",
    ],
)
async def test_no_setting_keeps_the_next_command_from_running(
    shell: Shell, box: Box, harm: str
) -> None:
    await run(shell, harm)
    result = await run(shell, "unset LD_PRELOAD; cd /; echo ok")
    assert (result.code, result.stdout) == (0, b"ok\n")
    assert shell.cwd == "/"


async def test_a_variable_that_is_no_text_lasts(shell: Shell) -> None:
    await run(shell, r"export X=$'\xff\xfe'")
    assert (await run(shell, 'printf %s "$X"')).stdout == b"\xff\xfe"


FORGED = [b"relative\0A=1\0", b"no end", b"", b"/" * 5000 + b"\0A=1\0", b"x" * STATE_BYTES * 2]


@pytest.mark.parametrize("forged", FORGED, ids=lambda forged: repr(forged[:8]))
async def test_nothing_is_believed_that_no_command_leaves(
    shell: Shell, box: Box, forged: bytes
) -> None:
    await box.write("forged", forged)
    await leave(shell, "cp $OLDPWD/forged $f")
    assert shell.cwd == box.workspace
    assert await text(shell, "pwd; echo ${A-none}") == f"{box.workspace}\nnone"


async def leave(shell: Shell, do: str) -> None:
    """Ends a command by `do` instead of what the shell ends it by; $f is where that leaves its state."""
    find = "f=$(trap -p EXIT | grep -o '/[^ ]*air-shell-[0-9a-f]*')"
    assert (await run(shell, f'cd /; {find}; test -n "$f" && trap "{do}" EXIT')).code == 0


async def test_what_a_command_leaves_is_read_as_data(shell: Shell, box: Box) -> None:
    await box.write("forged", b"/usr\0A=$(echo run)\0")
    await leave(shell, "cp $OLDPWD/forged $f")
    assert await text(shell, "pwd; echo $A") == "/usr\n$(echo run)"


async def test_a_fifo_in_the_place_of_what_is_left_blocks_nothing(shell: Shell, box: Box) -> None:
    await leave(shell, "mkfifo $f")
    again = await run(
        shell, 'find "$TMPDIR" -maxdepth 1 -type p; ls -d "$TMPDIR"/.air* 2>/dev/null; pwd'
    )
    assert again.text.strip() == box.workspace  # the FIFO is gone, and nothing hung on it
    assert not again.timed_out


async def test_a_cancelled_command_is_ended(shell: Shell, box: Box) -> None:
    running = asyncio.create_task(run(shell, "echo $$ > pid; mv pid started; sleep 600"))
    assert (await box.exec("until test -s started; do sleep 0.05; done", timeout=60)).ok
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    gone = "while kill -0 $(cat started) 2>/dev/null; do sleep 0.05; done"
    assert (await box.exec(gone, timeout=60)).ok
    assert await text(shell, "echo ok") == "ok"
