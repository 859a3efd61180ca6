"""What a policy may do, and that its luck is the same again; `graders` has what keeps it apart."""

from __future__ import annotations

from tests.mutants import Mutant

_POLICIES = "tests/unit/tasks/test_policies.py"
_LUCK = f"{_POLICIES}::test_equal_policies_score_equally_and_luck_is_seeded[gridMaze]"

MUTANTS = (
    Mutant(
        "an action is one of those there are",
        "tasks/gridMaze/grader/grade.py",
        " or not 0 <= action < ACTIONS",
        "",
        (f"{_POLICIES}::test_a_broken_policy_is_told_so[negative-gridMaze]",),
        _LUCK,
    ),
    Mutant(
        "a policy's luck with NumPy is seeded",
        "tasks/_shared/player.py",
        'sys.modules["numpy"].random.seed(seed)',
        "pass",
        (_LUCK,),
        f"{_POLICIES}::test_what_a_policy_prints_and_changes_has_no_effect[gridMaze]",
    ),
)
