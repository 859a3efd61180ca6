"""What keeps a game's opponents, and every other hidden thing of a graded program, from that program."""

from __future__ import annotations

from tests.mutants import Mutant

_ATTACKS = "tests/docker/test_games_attacks.py"


def _reach(name: str, attempt: str) -> str:
    return f"{_ATTACKS}::test_the_graders_things_are_out_of_reach[{name}-{attempt}]"


def _honest(name: str) -> str:
    return f"{_ATTACKS}::test_what_code_prints_changes_nothing[{name}]"


def _second_user(name: str) -> Mutant:
    return Mutant(
        f"{name}: code that is graded runs as a second user",
        f"tasks/{name}/grader/sandbox.py",
        "                **who,\n",
        "",
        (_reach(name, "read"), _reach(name, "memory of the grader")),
        _honest(name),
    )


def _grader_shut(name: str) -> Mutant:
    return Mutant(
        f"{name}: the second user cannot read the grader's folder",
        f"tasks/{name}/grader/grade.py",
        "HERE.chmod(0o700)",
        "HERE.chmod(0o755)",
        (_reach(name, "read"), _reach(name, "list")),
        _honest(name),
    )


CODE_TASKS = ("battleOfSexes",)

MUTANTS = (
    *map(_second_user, CODE_TASKS),
    *map(_grader_shut, CODE_TASKS),
)
