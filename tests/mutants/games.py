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


_SANDBOX = "tasks/satHeuristic/grader/sandbox.py"
_UNIT = "tests/unit/tasks/test_sandboxes.py"
_FAULT = f"{_UNIT}::test_a_program_at_fault_is_told_so"
_PASSES = f"{_UNIT}::test_arguments_and_answers_pass"
_SAT = "tests/unit/tasks/test_sat_heuristic.py"
_SAT_HONEST = f"{_SAT}::test_equal_files_score_equally"
_BUGS = "tests/unit/tasks/test_bug_hunt.py"
_BLOTTO = "tests/unit/tasks/test_blotto.py"
_CHEAPER = "tests/unit/tasks/test_cheaper.py"
_HYPER = "tests/unit/tasks/test_hyperparameters.py"

CODE_TASKS = ("battleOfSexes", "satHeuristic", "bugHunt", "blotto")

MUTANTS = (
    *map(_second_user, CODE_TASKS),
    *map(_grader_shut, CODE_TASKS),
    Mutant(
        "a graded program that never reads does not hold the grader up",
        _SANDBOX,
        "os.set_blocking(self._to, False)",
        "os.set_blocking(self._to, True)",
        (f"{_UNIT}::test_a_program_that_never_reads_does_not_hold_the_grader_up",),
        _PASSES,
    ),
    Mutant(
        "NaN and infinity are no answers of a graded program",
        _SANDBOX,
        ", parse_constant=self._refuse",
        "",
        (
            f"{_SAT}::test_an_answer_that_is_no_free_literal_is_told[float('inf')-returned Infinity]",
        ),
        _PASSES,
    ),
    Mutant(
        "a graded program answers once for each call",
        _SANDBOX,
        ' or line.count(b"\\n") != 1',
        "",
        (f"{_UNIT}::test_a_program_that_answers_twice_is_told_so",),
        _PASSES,
    ),
    Mutant(
        "an answer of a graded program is bounded",
        _SANDBOX,
        "if len(line) > MAX_ANSWER:",
        "if False:",
        (f"{_UNIT}::test_an_endless_answer_is_told_so",),
        _PASSES,
    ),
    Mutant(
        "satHeuristic: a literal must be free",
        "tasks/satHeuristic/grader/grade.py",
        " or abs(literal) not in {row[0] for row in rows}",
        "",
        (
            f"{_SAT}::test_an_answer_that_is_no_free_literal_is_told"
            "[kept.setdefault('first', rows[0][0])-expected a free variable]",
        ),
        _SAT_HONEST,
    ),
    Mutant(
        "satHeuristic: a literal is an integer",
        "tasks/satHeuristic/grader/grade.py",
        "type(literal) is not int or ",
        "",
        (f"{_SAT}::test_an_answer_that_is_no_free_literal_is_told",),
        _SAT_HONEST,
    ),
    Mutant(
        "bugHunt: a network's numbers are finite and bounded",
        "tasks/bugHunt/grader/grade.py",
        " or not abs(number) <= LARGEST",
        "",
        (f"{_BUGS}::test_what_is_no_network_is_refused",),
        f"{_BUGS}::test_one_unit_worked_out_by_hand",
    ),
    Mutant(
        "bugHunt: a network has the form that was asked for",
        "tasks/bugHunt/grader/grade.py",
        "if not isinstance(given, list) or len(given) != rows:",
        "if not isinstance(given, list):",
        (f"{_BUGS}::test_what_is_no_network_is_refused",),
        f"{_BUGS}::test_one_unit_worked_out_by_hand",
    ),
    Mutant(
        "bugHunt: the rows that count are not shown to the graded program",
        "tasks/bugHunt/grader/grade.py",
        'program.call(train["rows"], train["labels"], afresh=True)',
        'program.call(train["rows"], train["labels"], check["rows"], afresh=True)',
        (f"{_BUGS}::test_the_graded_program_is_shown_no_row_that_counts",),
    ),
    Mutant(
        "blotto: no field gets fewer than no soldiers",
        "tasks/blotto/grader/grade.py",
        "not 0 <= count <= SOLDIERS",
        "not count <= SOLDIERS",
        (f"{_BLOTTO}::test_what_is_no_allocation_is_refused",),
        f"{_BLOTTO}::test_the_margin_is_counted_field_by_field",
    ),
    Mutant(
        "blotto: an allocation sends 60 soldiers",
        "tasks/blotto/grader/grade.py",
        "if sum(given) != SOLDIERS:",
        "if False:",
        (f"{_BLOTTO}::test_what_is_no_allocation_is_refused",),
        f"{_BLOTTO}::test_the_margin_is_counted_field_by_field",
    ),
    Mutant(
        "cheaper: a wrong answer earns nothing",
        "tasks/cheaper/grader/grade.py",
        "    if wrong:",
        "    if False:",
        (f"{_CHEAPER}::test_a_program_at_fault_is_told_so",),
        f"{_CHEAPER}::test_the_cost_is_the_mean_over_the_hidden_inputs",
    ),
    Mutant(
        "cheaper: numbers are bounded, so that many cannot be packed into one",
        "tasks/cheaper/grader/machine.py",
        "if not -LARGEST <= value <= LARGEST:",
        "if False:",
        (f"{_CHEAPER}::test_a_program_at_fault_is_told_so",),
        f"{_CHEAPER}::test_programs_worked_out_by_hand",
    ),
    Mutant(
        "cheaper: an endless program ends",
        "tasks/cheaper/grader/machine.py",
        "if cost == MOST_STEPS:",
        "if cost == 2 * MOST_STEPS:",
        (f"{_CHEAPER}::test_a_program_at_fault_is_told_so",),
        f"{_CHEAPER}::test_programs_worked_out_by_hand",
    ),
    Mutant(
        "hyperparameters: values are within their bounds",
        "tasks/hyperparameters/grader/training.py",
        " or not low <= config[name] <= high",
        "",
        (f"{_HYPER}::test_what_is_no_configuration_is_refused",),
        f"{_HYPER}::test_the_score_is_the_error_on_the_hidden_rows_of_the_split",
    ),
    Mutant(
        "hyperparameters: a training has a budget",
        "tasks/hyperparameters/grader/training.py",
        'if config["units"] * config["epochs"] > BUDGET:',
        "if False:",
        (f"{_HYPER}::test_what_is_no_configuration_is_refused",),
        f"{_HYPER}::test_the_score_is_the_error_on_the_hidden_rows_of_the_split",
    ),
)
