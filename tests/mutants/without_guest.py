"""What a box holds to whose image has no Python: a shell stands in for the guest."""

from __future__ import annotations

from tests.mutants import Mutant

_BOX = "air/sandbox/docker/exec_box.py"
_SHELL = "air/sandbox/docker/posix_shell.py"
_HAND = "air/sandbox/docker/process_reaper.py"
_ARCHIVE = "air/sandbox/wire/archive.py"
_TESTS = "tests/docker/test_box_exec.py"
_PARTS = "tests/unit/sandbox/test_box_exec_parts.py"
_WORKS = f"{_TESTS}::test_conformance[standard-input-is-what-was-given]"
_GOOD = f"{_PARTS}::test_what_comes_out_is_files_and_folders"
_REFUSED = f"{_PARTS}::test_everything_else_is_refused"


def _without(*checks: str) -> tuple[str, ...]:
    return tuple(f"{_TESTS}::test_conformance[{check}]" for check in checks)


_LIFE = (
    Mutant(
        "what runs in a box without a guest is not the user of its first process",
        _BOX,
        'arguments |= {"user": "0:0", "entrypoint"',
        'arguments |= {"entrypoint"',
        _without(
            "the-guest-cannot-be-read-or-written", "the-guest-cannot-be-killed-stopped-or-traced"
        ),
        _WORKS,
    ),
    Mutant(
        "a box without a guest to which nobody speaks ends by itself",
        _SHELL,
        "{{ sleep {PATIENCE}; kill -TERM 1; }} & patience=$!",
        "patience=",
        (f"{_TESTS}::test_a_box_whose_harness_never_speaks_ends_by_itself[bare]",),
        _WORKS,
    ),
    Mutant(
        "a box without a guest ends with the stream of its harness",
        _SHELL,
        "  hear & wait $! && exit 0\n",
        "  hear & wait $!\n  sleep 1\n",
        (f"{_TESTS}::test_sigkill_of_the_harness_ends_the_box",),
        _WORKS,
    ),
    Mutant(
        "a command without an end is told from a box that has died",
        _BOX,
        "                await self._hand.answers()\n",
        "",
        _without(
            "the-time-to-live-ends-the-box", "closing-twice-is-harmless-and-use-afterwards-says-so"
        ),
        _WORKS,
    ),
    Mutant(
        "without a guest, the limit of memory is told as it is kept",
        _BOX,
        'memory_limit_bytes=memory.get("limit")',
        "memory_limit_bytes=self.spec.limits.memory_mb << 20",
        _without("stats-tell-the-limit-of-memory"),
        _WORKS,
    ),
)

_BOUNDS = (
    Mutant(
        "without a guest, open files are limited",
        _SHELL,
        "ulimit -Sn {MOST_FILES} && ulimit -Hn {MOST_FILES}; ",
        "",
        _without("open-files-are-bounded"),
        _WORKS,
    ),
    Mutant(
        "without a guest, a crash leaves no core",
        _SHELL,
        "ulimit -Sc 0; ulimit -Hc 0; ",
        "",
        _without("a-crash-leaves-no-core"),
        _WORKS,
    ),
)

_ENDS = (
    Mutant(
        "without a guest, orphans that show no mark end with the command that timed out",
        _HAND,
        '        or (seen.parent not in parents and seen.whose == "none" and seen.session != 1)\n',
        "",
        (f"{_PARTS}::test_a_tree_is_what_is_marked_what_is_orphaned_and_what_descends_from_it",),
        _GOOD,
    ),
    Mutant(
        "what others write into the output of what ends commands is ignored",
        _HAND,
        '            if row.startswith(f"{tag} "):\n'
        '                rows.append(row.removeprefix(f"{tag} "))\n',
        '            rows.append(row.removeprefix(f"{tag} "))\n',
        (f"{_TESTS}::test_what_ends_commands_is_not_deceived_by_their_output",),
        _WORKS,
    ),
    Mutant(
        "without a guest, a command that is cancelled is killed",
        _BOX,
        "await to_the_end(self._abandon(program, ident))",
        "pass",
        _without("a-cancelled-exec-kills-its-command"),
        _WORKS,
    ),
    Mutant(
        "without a guest, a command that is cancelled while it starts is killed",
        _BOX,
        "await to_the_end(self._abandon(await to_the_end(starting), ident))",
        "await to_the_end(starting)",
        tuple(f"{_TESTS}::test_a_cancelled_command_leaves_nothing[{s}]" for s in (0.0, 0.02)),
        _WORKS,
    ),
)

_FILES = (
    Mutant(
        "without a guest, no part of a way may be a link",
        _SHELL,
        '    if [ -L "./$t" ] || {{ [ -e "./$t" ] && [ ! -d "./$t" ]; }}; then',
        '    if [ -e "./$t" ] && [ ! -d "./$t" ]; then',
        _without("links-are-not-followed"),
        _WORKS,
    ),
    Mutant(
        "without a guest, a file takes the place of a link and is not written through it",
        _SHELL,
        '  [ ! -L "./$t" ] || rm -f -- "./$t"\n',
        "",
        (f"{_TESTS}::test_files_in_any_image[bare]",),
        _WORKS,
    ),
    Mutant(
        "nothing but files and folders is taken out of an archive",
        _ARCHIVE,
        "plain = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not member.issparse()",
        "plain = True",
        (_REFUSED,),
        _GOOD,
    ),
    Mutant(
        "an archive that comes out of a box is bounded in bytes",
        _ARCHIVE,
        "                if left < 0:",
        "                if False:",
        (_REFUSED,),
        _GOOD,
    ),
    Mutant(
        "an archive that comes out of a box is bounded in depth",
        _ARCHIVE,
        'if len(entries) > MAX_ENTRIES or above + path.count("/") + 1 > MAX_DEPTH:',
        "if len(entries) > MAX_ENTRIES:",
        (_REFUSED,),
        _GOOD,
    ),
)

MUTANTS = (*_LIFE, *_BOUNDS, *_ENDS, *_FILES)
