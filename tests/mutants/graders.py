"""What all graders share: the runner that keeps agent code apart, the command line, the reader of tables."""

from __future__ import annotations

from tests.mutants import Mutant

_RUNNER = "tasks/_shared/runner.py"
_PLAYER = "tasks/_shared/player.py"
_GRADING = "tasks/_shared/grading.py"
_TABLE = "tasks/_shared/table.py"
_STRATEGIES = "tests/docker/test_grading_attacks.py"
_GAMES = "tests/docker/test_games_attacks.py"
_POLICIES = "tests/docker/test_policy_attacks.py"
_MODELS = "tests/docker/test_data_task_attacks.py"
_REACH = "test_the_graders_things_are_out_of_reach"
_HIDDEN_TEXT = f"{_MODELS}::test_the_hidden_text_is_out_of_a_models_reach"
_HONEST = f"{_STRATEGIES}::test_matches_start_afresh_and_luck_is_seeded"
_UNIT = "tests/unit/tasks/test_runner.py"
_FAULT = f"{_UNIT}::test_code_at_fault_is_told_so"
_PASSES = f"{_UNIT}::test_arguments_and_answers_pass"
_LIMITS = f"{_UNIT}::test_limits_are_put_on_agent_code"
_TELLS = f"{_UNIT}::test_an_error_carries_nothing_of_what_the_code_was_shown"
_EXPLAINED = f"{_UNIT}::test_an_error_before_anything_was_shown_has_its_text"
_WITHIN_REACH = f"{_UNIT}::test_nothing_but_the_source_and_what_is_asked_is_in_its_reach"
_DATA = "tests/unit/tasks/test_shipped_data.py"
_REFUSED = f"{_DATA}::test_a_submission_that_cannot_be_graded_is_explained"
_AMES = f"{_DATA}::test_the_metrics_of_house_prices_are_those_of_their_formulas"
_SHARED = "tests/unit/tasks/test_shared.py"
_GAME_TASKS = ("battleOfSexes", "satHeuristic", "bugHunt", "blotto")

APART = (
    Mutant(
        "code that is graded runs as a second user",
        _RUNNER,
        'who = {"user": int(other), "group": int(other), "extra_groups": []}',
        "who = {}",
        (
            f"{_STRATEGIES}::{_REACH}[opponents]",
            f"{_STRATEGIES}::{_REACH}[memory of the grader]",
            f"{_POLICIES}::{_REACH}[seeds]",
            f"{_HIDDEN_TEXT}[text]",
            *(f"{_GAMES}::{_REACH}[{name}-read]" for name in _GAME_TASKS),
        ),
        _HONEST,
    ),
    Mutant(
        "the second user cannot read the grader's folder",
        _GRADING,
        "HERE.chmod(0o700)",
        "HERE.chmod(0o755)",
        (
            f"{_STRATEGIES}::{_REACH}[seeds]",
            f"{_POLICIES}::{_REACH}[rules]",
            f"{_HIDDEN_TEXT}[listing]",
            *(f"{_GAMES}::{_REACH}[{name}-list]" for name in _GAME_TASKS),
        ),
        _HONEST,
    ),
    Mutant(
        "the grader's arguments do not tell which split is graded",
        _GRADING,
        "        _hide_arguments()  #",
        "        #",
        (f"{_STRATEGIES}::test_the_graders_arguments_do_not_tell_the_split",),
        _HONEST,
    ),
    Mutant(
        "graded code starts no processes",
        _PLAYER,
        '    limit("NPROC", limits["processes"])\n',
        "",
        (
            f"{_STRATEGIES}::{_REACH}[start a process]",
            f"{_POLICIES}::{_REACH}[start a process]",
            f"{_HIDDEN_TEXT}[start a process]",
        ),
        _HONEST,
    ),
    Mutant(
        "graded code has no hold of the player's own socket",
        _PLAYER,
        "            control.close()  # agent code cannot forge a report\n",
        "",
        (_WITHIN_REACH,),
        _PASSES,
    ),
    Mutant(
        "what graded code prints goes nowhere",
        _PLAYER,
        "for fd in (0, 1, 2):",
        "for fd in ():",
        (_WITHIN_REACH,),
        _PASSES,
    ),
    Mutant(
        "graded code sees nothing of the grader's environment",
        _RUNNER,
        "                env=env,\n",
        "                env=os.environ | env,\n",
        (_WITHIN_REACH,),
        _PASSES,
    ),
    Mutant(
        "a load of graded code knows nothing of the one before",
        _RUNNER,
        "            if self._child:\n                self._kill()\n"
        '                self._report(b"X")\n',
        "            if self._child:\n                return\n",
        (
            f"{_UNIT}::test_a_load_knows_nothing_of_the_one_before",
            "tests/unit/tasks/test_policies.py::test_episodes_know_nothing_of_each_other[gridMaze]",
        ),
        _PASSES,
    ),
    Mutant(
        "what graded code leaves running is killed",
        _RUNNER,
        "os.kill(self._child, signal.SIGKILL)",
        "os.kill(self._child, 0)",
        (f"{_UNIT}::test_what_the_code_leaves_running_is_killed",),
        _PASSES,
    ),
    Mutant(
        "luck of graded code is seeded",
        _PLAYER,
        "        random.seed(seed)\n",
        "",
        (f"{_UNIT}::test_luck_is_seeded_anew_for_every_load",),
        _PASSES,
    ),
)

BOUNDED = (
    Mutant(
        "graded code has limited processor time",
        _RUNNER,
        '                "CPU": self.cpu_seconds,\n',
        "",
        (f"{_POLICIES}::test_a_broken_or_cheating_policy_is_told_so[spins]", _LIMITS),
        _HONEST,
    ),
    Mutant(
        "loads of graded code share their processor time",
        _PLAYER,
        '(0 if settings["limits"]["cpu_per_load"] else used)',
        "0",
        (f"{_UNIT}::test_processor_time_is_that_of_all_loads_or_of_each",),
        _PASSES,
    ),
    Mutant(
        "graded code has limited memory",
        _RUNNER,
        '                "AS": self.memory_mb and self.memory_mb * mib,\n',
        "",
        (_LIMITS,),
        _PASSES,
    ),
    Mutant(
        "graded code is killed before its grader where memory is short",
        _PLAYER,
        'file.write("1000")',
        'file.write("0")',
        (_LIMITS,),
        _PASSES,
    ),
    Mutant(
        "graded code that never reads does not hold the grader up",
        _RUNNER,
        "            self._data.setblocking(False)\n",
        "",
        (f"{_UNIT}::test_code_that_never_reads_does_not_hold_the_grader_up",),
        _PASSES,
    ),
    Mutant(
        "graded code answers once, and only when it is asked",
        _RUNNER,
        " or len(frame) > size",
        "",
        (_FAULT,),
        _PASSES,
    ),
    Mutant(
        "an answer of graded code is bounded",
        _RUNNER,
        "if length > most:",
        "if False:",
        (_FAULT,),
        _PASSES,
    ),
    Mutant(
        "NaN and infinity are no answers of graded code",
        _RUNNER,
        "parse_constant=self._refuse",
        "parse_constant=None",
        (
            "tests/unit/tasks/test_sat_heuristic.py"
            "::test_an_answer_that_is_no_free_literal_is_told[float('inf')-returned Infinity]",
        ),
        _PASSES,
    ),
    Mutant(
        "an error of graded code carries no text, once it was shown anything",
        _RUNNER,
        "if not self._shown:",
        "if True:",
        (_TELLS,),
        _EXPLAINED,
    ),
    Mutant(
        "an error of graded code is of a kind that Python knows",
        _RUNNER,
        'kind if kind in ERRORS else "Exception"',
        "kind",
        (_TELLS,),
        _EXPLAINED,
    ),
    Mutant(
        "an error of graded code is at a line that there is",
        _RUNNER,
        "if line in range(1, self._lines + 1)",
        "if line",
        (_TELLS,),
        _EXPLAINED,
    ),
)

TABLES = (
    Mutant(
        "every answer that is asked for is there",
        _TABLE,
        "    if missing:\n",
        "    if missing == len(expected):\n",
        (f"{_REFUSED}[amesHousing]",),
        _AMES,
    ),
    Mutant(
        "no answer is there twice",
        _TABLE,
        "if key in values:",
        "if False:",
        (f"{_REFUSED}[amesHousing]",),
        _AMES,
    ),
    Mutant(
        "a number is finite and in its range",
        _TABLE,
        "if not low <= value <= high:",
        "if value != value:",
        (
            f"{_DATA}::test_what_is_no_number_in_the_range_is_refused[inf-amesHousing]",
            f"{_DATA}::test_what_is_no_number_in_the_range_is_refused[-1e12-amesHousing]",
        ),
        _AMES,
    ),
    Mutant(
        "a label is one of the classes",
        _TABLE,
        "if cell not in allowed:",
        "if False:",
        (f"{_DATA}::test_what_is_no_label_is_refused",),
        f"{_REFUSED}[foodReviews]",
    ),
)

STAGED = (
    Mutant(
        "a changed shared file makes remembered grades and data another task's",
        "air/tasks/sources/own.py",
        "    if not others:\n",
        "    if True:\n",
        (f"{_SHARED}::test_a_changed_shared_file_is_another_task",),
        f"{_SHARED}::test_shared_files_lie_beside_the_grader_and_not_before_the_agent",
    ),
)

MUTANTS = (*APART, *BOUNDED, *TABLES, *STAGED)
