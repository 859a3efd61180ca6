"""What keeps hidden episodes from a policy, its episodes from one another, and it from its grader."""

from __future__ import annotations

from tests.mutants import Mutant

_ATTACKS = "tests/docker/test_policy_attacks.py"
_POLICIES = "tests/unit/tasks/test_policies.py"
_SANDBOX = "tasks/gridMaze/grader/sandbox.py"
_REACH = f"{_ATTACKS}::test_the_graders_things_are_out_of_reach"
_HONEST = f"{_ATTACKS}::test_what_a_policy_prints_changes_nothing[gridMaze]"
_LUCK = f"{_POLICIES}::test_equal_policies_score_equally_and_luck_is_seeded[gridMaze]"

MUTANTS = (
    Mutant(
        "a policy runs as a second user",
        _SANDBOX,
        "                **who,\n",
        "",
        (f"{_REACH}[seeds]", f"{_REACH}[memory of the grader]"),
        _HONEST,
    ),
    Mutant(
        "a policy's user cannot enter the grader's folder",
        "tasks/gridMaze/grader/grade.py",
        "HERE.chmod(0o700)",
        "HERE.chmod(0o755)",
        (f"{_REACH}[seeds]", f"{_REACH}[rules]"),
        _HONEST,
    ),
    Mutant(
        "a policy starts no processes",
        _SANDBOX,
        '    limit("NPROC", 0)\n',
        "",
        (f"{_REACH}[start a process]",),
        _HONEST,
    ),
    Mutant(
        "a policy's processor time is bounded",
        "tasks/cartPole/grader/sandbox.py",
        '("CPU", 5), ',
        "",
        (f"{_ATTACKS}::test_a_broken_or_cheating_policy_is_told_so[spins]",),
        f"{_ATTACKS}::test_what_a_policy_prints_changes_nothing[cartPole]",
    ),
    Mutant(
        "an action is one of those there are",
        _SANDBOX,
        "if not 0 <= number < actions:",
        "if False:",
        (f"{_POLICIES}::test_a_broken_policy_is_told_so[negative-gridMaze]",),
        _LUCK,
    ),
    Mutant(
        "every episode has a process of its own",
        _SANDBOX,
        "child = os.fork()\n        if not child:\n            guarded(episode, code, seed)\n"
        "            os._exit(0)\n",
        "guarded(episode, code, seed)\n        child = os.fork()\n        if not child:\n"
        "            os._exit(0)\n",
        (f"{_POLICIES}::test_episodes_know_nothing_of_each_other[gridMaze]",),
    ),
    Mutant(
        "a policy's luck is seeded",
        _SANDBOX,
        "    random.seed(seed)\n    numpy.random.seed(seed)\n",
        "",
        (_LUCK,),
        f"{_POLICIES}::test_what_a_policy_prints_and_changes_has_no_effect[gridMaze]",
    ),
)
