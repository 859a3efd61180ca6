"""What a shell holds to between commands, and what is told of a command's end."""

from __future__ import annotations

from tests.mutants import DOCKER_WORKS, PROCESS_WORKS, Mutant, as_process, in_docker

_FILE = "air/sandbox/contract/shell.py"
_OUTCOME = "tests/unit/sandbox/test_box_failure.py::test_outcome"
_GROUPS = "tests/unit/sandbox/test_guest_stats.py::test_control_groups"
_KEEPS = as_process("a-shell-keeps-nothing-else")


def _mutant(name: str, old: str, new: str, *tests: str, still: str = PROCESS_WORKS) -> Mutant:
    return Mutant(name, _FILE, old, new, tests, still)


MUTANTS = (
    _mutant(
        "a command's tracing does not show how its state is saved",
        "{ set +ex; trap - DEBUG",
        "{ set +e; trap - DEBUG",
        *_KEEPS,
    ),
    _mutant(
        "a file size limit does not change a command's exit status",
        "; trap '' XFSZ",
        "",
        *_KEEPS,
    ),
    _mutant(
        "a command's `set -C` does not keep its state from being saved",
        'f">| {shlex',
        'f"> {shlex',
        "tests/unit/worlds/test_shell.py::test_no_setting_keeps_the_next_command_from_running[set -C]",
    ),
    _mutant(
        "a state that is no absolute path is refused",
        ' or not cwd.startswith("/")',
        "",
        "tests/unit/worlds/test_shell.py::test_nothing_is_believed_that_no_command_leaves[b'relative']",
    ),
    Mutant(
        "a program that cannot be run is told from one that failed",
        "air/sandbox/guest/spawn.py",
        "        stillborn[0] = 1\n",
        "",
        as_process("outcomes-are-told-apart"),
        PROCESS_WORKS,
    ),
    Mutant(
        "a timeout is told from other ends",
        "air/sandbox/docker/engine_errors.py",
        '    if end.timed_out:\n        return "timed-out"\n',
        "",
        (f"{_OUTCOME}[end11-timed-out]", f"{_OUTCOME}[end12-timed-out]"),
        f"{_OUTCOME}[end0-ok]",
    ),
    Mutant(
        "pages that can be dropped are not counted as memory in use",
        "air/sandbox/guest/usage.py",
        "max(0, used - (kept or 0))",
        "used",
        (f"{_GROUPS}[v1]", f"{_GROUPS}[v2]"),
        f"{_GROUPS}[hidden]",
    ),
    Mutant(
        "the limit of memory is told as it is kept",
        "air/sandbox/wire/guest_box.py",
        'memory_limit_bytes=said["memory_limit"]',
        "memory_limit_bytes=self.spec.limits.memory_mb << 20",
        in_docker("stats-tell-the-limit-of-memory"),
        DOCKER_WORKS,
    ),
)
