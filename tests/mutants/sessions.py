"""What a session holds to between commands, and what is told of a command's end."""

from __future__ import annotations

from tests.mutants import DOCKER_WORKS, PROCESS_WORKS, Mutant, as_process, in_docker

_FILE = "air/sandbox/contract/session.py"
_PARSED = "tests/unit/sandbox/test_session.py::test_what_no_shell_of_ours_left"
_LEFT = "tests/unit/sandbox/test_session.py::test_what_a_shell_left"
_OUTCOME = "tests/unit/sandbox/test_box_failure.py::test_outcome"
_GROUPS = "tests/unit/sandbox/test_guest_stats.py::test_control_groups"
_DAMAGED = as_process("a-damaged-session-goes-on")
_KEEPS = as_process("a-session-keeps-nothing-else", "a-session-keeps-directory-and-exports")


def _mutant(name: str, old: str, new: str, *tests: str, still: str = PROCESS_WORKS) -> Mutant:
    return Mutant(name, _FILE, old, new, tests, still)


MUTANTS = (
    _mutant(
        "a killed command leaves its session as it was",
        "if result.timed_out or result.signal:",
        "if False:",
        *as_process("a-killed-command-leaves-its-session-as-it-was"),
    ),
    _mutant(
        "a session's state is written to a file and to nothing else",
        "if [[ -f {file} || ! -e {file} ]]; then",
        "if true; then",
        *_DAMAGED,
    ),
    _mutant(
        "a session whose file was damaged takes another",
        "            self._move()\n",
        "            pass\n",
        *_DAMAGED,
    ),
    _mutant(
        "a command's `set -e` does not keep its state from being saved",
        "builtin set +e; ",
        "",
        *_KEEPS,
    ),
    _mutant(
        "a command's DEBUG trap does not run while its state is saved",
        "builtin trap - DEBUG; ",
        "",
        *_KEEPS,
    ),
    _mutant(
        "a full disk does not end a command while its state is saved",
        "builtin trap '' XFSZ; ",
        "",
        *_KEEPS,
    ),
    _mutant(
        "a command's `set -C` does not keep its state from being saved",
        "}} >| {file}; fi",
        "}} > {file}; fi",
        *_KEEPS,
    ),
    _mutant(
        "a state that our script did not begin is refused",
        "if parts[0] != token:",
        "if False:",
        f"{_PARSED}[other\\x00/\\n\\x00other-replaced]",
        f"{_PARSED}[-replaced]",
        still=f"{_LEFT}[T\\x00/\\n\\x00T-state0]",
    ),
    _mutant(
        "a state with what is no variable is refused",
        " or None in found",
        "",
        f"{_PARSED}[T\\x00/\\n\\x00A-B=1\\x00T-damaged]",
        still=f"{_LEFT}[T\\x00/\\n\\x00T-state0]",
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
