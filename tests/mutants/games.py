"""What each task that grades a program checks of its answers; `graders` has what they share."""

from __future__ import annotations

from tests.mutants import Mutant

_BATTLE = "tests/unit/tasks/test_battle_of_sexes.py"
_SAT = "tests/unit/tasks/test_sat_heuristic.py"
_SAT_HONEST = f"{_SAT}::test_equal_files_score_equally"
_BUGS = "tests/unit/tasks/test_bug_hunt.py"
_BLOTTO = "tests/unit/tasks/test_blotto.py"
_CHEAPER = "tests/unit/tasks/test_cheaper.py"
_HYPER = "tests/unit/tasks/test_hyperparameters.py"

MUTANTS = (
    Mutant(
        "battleOfSexes: a move is 0 or 1",
        "tasks/battleOfSexes/grader/grade.py",
        "if move not in (0, 1):",
        "if False:",
        (f"{_BATTLE}::test_a_strategy_at_fault_is_told_so",),
        f"{_BATTLE}::test_equal_files_score_equally_and_the_seed_changes_the_luck",
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
        "if not abs(number) <= LARGEST:",
        "if False:",
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
        'runner.call(train["rows"], train["labels"])',
        'runner.call(train["rows"], train["labels"], check["rows"])',
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
        "tasks/cheaper/starter/machine.py",
        "if not -LARGEST <= value <= LARGEST:",
        "if False:",
        (f"{_CHEAPER}::test_a_program_at_fault_is_told_so",),
        f"{_CHEAPER}::test_programs_worked_out_by_hand",
    ),
    Mutant(
        "cheaper: an endless program ends",
        "tasks/cheaper/starter/machine.py",
        "if cost == MOST_STEPS:",
        "if cost == 2 * MOST_STEPS:",
        (f"{_CHEAPER}::test_a_program_at_fault_is_told_so",),
        f"{_CHEAPER}::test_programs_worked_out_by_hand",
    ),
    Mutant(
        "hyperparameters: values are within their bounds",
        "tasks/hyperparameters/starter/training.py",
        " or not low <= config[name] <= high",
        "",
        (f"{_HYPER}::test_what_is_no_configuration_is_refused",),
        f"{_HYPER}::test_the_score_is_the_error_on_the_hidden_rows_of_the_split",
    ),
    Mutant(
        "hyperparameters: a training has a budget",
        "tasks/hyperparameters/starter/training.py",
        'if config["units"] * config["epochs"] > BUDGET:',
        "if False:",
        (f"{_HYPER}::test_what_is_no_configuration_is_refused",),
        f"{_HYPER}::test_the_score_is_the_error_on_the_hidden_rows_of_the_split",
    ),
)
