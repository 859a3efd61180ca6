"""Defences of grades and rewards: what agent code may see and do while it is graded."""

from __future__ import annotations

from tests.mutants import Mutant

MUTANTS = (
    Mutant(
        "a score that is no finite number is our failure",
        "air/tasks/grading.py",
        "if not usable(score):",
        "if score is None:",
        (
            "tests/unit/tasks/test_grading.py::test_a_failure_of_ours_is_raised_and_never_remembered",
        ),
        "tests/unit/tasks/test_grading.py::test_a_grade_is_measured_once_and_remembered_on_disk",
    ),
    Mutant(
        "an artefact is bounded",
        "air/tasks/artefact.py",
        "await box.read(name, max_bytes=left)",
        "await box.read(name)",
        (
            "tests/unit/tasks/test_artefact.py::test_what_is_no_file_of_its_size_is_told_to_the_agent",
        ),
        "tests/unit/tasks/test_grading.py::test_a_grade_is_measured_once_and_remembered_on_disk",
    ),
    Mutant(
        "answers are not in an agent's box",
        "air/tasks/__init__.py",
        "    await box.put(prepared.agent)",
        "    await box.put(prepared.agent)\n    await box.put(prepared.grader)",
        (
            "tests/unit/tasks/test_artefact.py::test_a_staged_workspace_has_starter_files_and_data_and_no_answer",
            "tests/docker/tasks/test_grading_attacks.py::test_no_answer_is_in_the_agents_box",
        ),
        "tests/unit/tasks/test_grading.py::test_a_grade_is_measured_once_and_remembered_on_disk",
    ),
    Mutant(
        "code that is graded runs as a second user",
        "tasks/_shared/runner.py",
        'who = {"user": int(other), "group": int(other), "extra_groups": []}',
        "who = {}",
        (
            "tests/docker/tasks/test_grading_attacks.py::test_the_graders_things_are_out_of_reach[opponents]",
            "tests/docker/tasks/test_grading_attacks.py::test_the_graders_things_are_out_of_reach[memory of the grader]",
            "tests/docker/tasks/test_policy_attacks.py::test_the_graders_things_are_out_of_reach[seeds]",
            "tests/docker/tasks/test_data_task_attacks.py::test_the_hidden_text_is_out_of_a_models_reach[text]",
            "tests/docker/tasks/test_game_attacks.py::test_the_graders_things_are_out_of_reach[battleOfSexes-read]",
            "tests/docker/tasks/test_game_attacks.py::test_the_graders_things_are_out_of_reach[satHeuristic-read]",
            "tests/docker/tasks/test_game_attacks.py::test_the_graders_things_are_out_of_reach[bugHunt-read]",
            "tests/docker/tasks/test_game_attacks.py::test_the_graders_things_are_out_of_reach[blotto-read]",
        ),
        "tests/docker/tasks/test_grading_attacks.py::test_matches_start_afresh_and_luck_is_seeded",
    ),
    Mutant(
        "the second user cannot read the grader's folder",
        "tasks/_shared/grading.py",
        "HERE.chmod(0o700)",
        "HERE.chmod(0o755)",
        (
            "tests/docker/tasks/test_grading_attacks.py::test_the_graders_things_are_out_of_reach[seeds]",
            "tests/docker/tasks/test_policy_attacks.py::test_the_graders_things_are_out_of_reach[rules]",
            "tests/docker/tasks/test_data_task_attacks.py::test_the_hidden_text_is_out_of_a_models_reach[listing]",
            "tests/docker/tasks/test_game_attacks.py::test_the_graders_things_are_out_of_reach[battleOfSexes-list]",
            "tests/docker/tasks/test_game_attacks.py::test_the_graders_things_are_out_of_reach[satHeuristic-list]",
            "tests/docker/tasks/test_game_attacks.py::test_the_graders_things_are_out_of_reach[bugHunt-list]",
            "tests/docker/tasks/test_game_attacks.py::test_the_graders_things_are_out_of_reach[blotto-list]",
        ),
        "tests/docker/tasks/test_grading_attacks.py::test_matches_start_afresh_and_luck_is_seeded",
    ),
    Mutant(
        "the grader's arguments do not tell which split is graded",
        "tasks/_shared/grading.py",
        "        _hide_arguments()  #",
        "        #",
        (
            "tests/docker/tasks/test_grading_attacks.py::test_the_graders_arguments_do_not_tell_the_split",
        ),
        "tests/docker/tasks/test_grading_attacks.py::test_matches_start_afresh_and_luck_is_seeded",
    ),
    Mutant(
        "graded code starts no processes",
        "tasks/_shared/player.py",
        '    limit("NPROC", limits["processes"])\n',
        "",
        (
            "tests/docker/tasks/test_grading_attacks.py::test_the_graders_things_are_out_of_reach[start a process]",
            "tests/docker/tasks/test_policy_attacks.py::test_the_graders_things_are_out_of_reach[start a process]",
            "tests/docker/tasks/test_data_task_attacks.py::test_the_hidden_text_is_out_of_a_models_reach[start a process]",
        ),
        "tests/docker/tasks/test_grading_attacks.py::test_matches_start_afresh_and_luck_is_seeded",
    ),
    Mutant(
        "graded code has no hold of the player's own socket",
        "tasks/_shared/player.py",
        "            control.close()  # agent code cannot forge a report\n",
        "",
        (
            "tests/unit/tasks/test_runner.py::test_nothing_but_the_source_and_what_is_asked_is_in_its_reach",
        ),
        "tests/unit/tasks/test_runner.py::test_arguments_and_answers_pass",
    ),
    Mutant(
        "graded code sees nothing of the grader's environment",
        "tasks/_shared/runner.py",
        "                env=env,\n",
        "                env=os.environ | env,\n",
        (
            "tests/unit/tasks/test_runner.py::test_nothing_but_the_source_and_what_is_asked_is_in_its_reach",
        ),
        "tests/unit/tasks/test_runner.py::test_arguments_and_answers_pass",
    ),
    Mutant(
        "what graded code leaves running is killed",
        "tasks/_shared/runner.py",
        "os.kill(self._child, signal.SIGKILL)",
        "os.kill(self._child, 0)",
        ("tests/unit/tasks/test_runner.py::test_what_the_code_leaves_running_is_killed",),
        "tests/unit/tasks/test_runner.py::test_arguments_and_answers_pass",
    ),
    Mutant(
        "graded code has limited memory",
        "tasks/_shared/runner.py",
        '                "AS": self.memory_mb and self.memory_mb * mib,\n',
        "",
        ("tests/unit/tasks/test_runner.py::test_limits_are_put_on_agent_code",),
        "tests/unit/tasks/test_runner.py::test_arguments_and_answers_pass",
    ),
    Mutant(
        "an answer of graded code is bounded",
        "tasks/_shared/runner.py",
        "if length > most:",
        "if False:",
        ("tests/unit/tasks/test_runner.py::test_code_at_fault_is_told_so",),
        "tests/unit/tasks/test_runner.py::test_arguments_and_answers_pass",
    ),
    Mutant(
        "an error of graded code carries no text, once it was shown anything",
        "tasks/_shared/runner.py",
        "if not self._shown:",
        "if True:",
        (
            "tests/unit/tasks/test_runner.py::test_an_error_carries_nothing_of_what_the_code_was_shown",
        ),
        "tests/unit/tasks/test_runner.py::test_an_error_before_anything_was_shown_has_its_text",
    ),
    Mutant(
        "a changed shared file makes remembered grades and data another task's",
        "air/tasks/sources/lookup.py",
        "    if not others:\n",
        "    if True:\n",
        ("tests/unit/tasks/test_shared.py::test_a_changed_shared_file_is_another_task",),
        "tests/unit/tasks/test_shared.py::test_shared_files_lie_beside_the_grader_and_not_before_the_agent",
    ),
    Mutant(
        "bugHunt: the rows that count are not shown to the graded program",
        "tasks/bugHunt/grader/grade.py",
        'runner.call(train["rows"], train["labels"])',
        'runner.call(train["rows"], train["labels"], check["rows"])',
        (
            "tests/unit/tasks/shipped/test_bug_hunt.py::test_the_graded_program_is_shown_no_row_that_counts",
        ),
    ),
    Mutant(
        "an MLGym strategy plays as a second user",
        "air/tasks/sources/mlgym/grader/grade.py",
        '        "user": second_user(),\n',
        '        "user": None,\n',
        (
            "tests/docker/tasks/test_mlgym_attacks.py::test_a_strategy_reaches_nothing_of_the_evaluation[the script's environment]",
            "tests/docker/tasks/test_mlgym_attacks.py::test_a_strategy_reaches_nothing_of_the_evaluation[the end of the script]",
        ),
        "tests/docker/tasks/test_mlgym_attacks.py::test_a_strategy_may_use_numpy",
    ),
    Mutant(
        "code inside an MLGym script is a second user's",
        "air/tasks/sources/mlgym/grader/grade.py",
        'return None if how["kind"] == "csv" or how["player"] else second_user()',
        "return None",
        (
            "tests/docker/tasks/test_mlgym_attacks.py::test_code_in_the_script_is_still_a_second_user[the script itself]",
            "tests/docker/tasks/test_mlgym_attacks.py::test_a_model_is_loaded_by_a_second_user",
        ),
        "tests/docker/tasks/test_mlgym_attacks.py::test_a_strategy_may_use_numpy",
    ),
    Mutant(
        "an MLGym script that ends early vouches for nothing",
        "air/tasks/sources/mlgym/grader/grade.py",
        "    if not ended.report:\n",
        "    if False:\n",
        (
            "tests/unit/tasks/mlgym/test_grading.py::test_an_early_end_in_the_script_earns_nothing[metrics, then an early end]",
        ),
        "tests/unit/tasks/mlgym/test_grading.py::test_code_that_the_script_imports_can_be_scored",
    ),
    Mutant(
        "the report on an MLGym evaluation has the evaluator's token",
        "air/tasks/sources/mlgym/grader/grade.py",
        'said.get("token") == token',
        'said.get("token")',
        (
            "tests/unit/tasks/mlgym/test_grading.py::test_an_early_end_in_the_script_earns_nothing[a report without the token]",
        ),
        "tests/unit/tasks/mlgym/test_grading.py::test_code_that_the_script_imports_can_be_scored",
    ),
    Mutant(
        "MLGym's answers stay with the grader",
        "air/tasks/sources/mlgym/source.py",
        "            if any(fnmatch.fnmatchcase(name, pattern) for pattern in self.shown):\n                copy_file(",
        "            if True:\n                copy_file(",
        (
            "tests/unit/tasks/mlgym/test_checkout.py::test_answers_and_unknown_files_stay_with_the_grader",
        ),
        "tests/unit/tasks/mlgym/test_checkout.py::test_the_checkout_is_only_read",
    ),
    Mutant(
        "a move within the measured noise earns nothing",
        "air/rewards/delta.py",
        "max(self._scale.noise_floor, self._scale.noise_sigmas * of_the_move)",
        "self._scale.noise_floor",
        (
            "tests/unit/rewards/test_noise.py::test_luck_cannot_be_farmed_whatever_the_mode",
            "tests/e2e/episodes/test_noise.py::test_moves_within_the_noise_earn_nothing_and_real_ones_do",
        ),
        "tests/unit/rewards/test_delta.py::test_previous_pays_moves_both_ways",
    ),
    Mutant(
        "taking a bad artefact away earns nothing",
        "air/rewards/terms.py",
        "scale.phi_clip[0] if score is None",
        "0.0 if score is None",
        ("tests/unit/rewards/test_terms.py::test_taking_a_bad_artefact_away_never_earns_anything",),
        "tests/unit/rewards/test_terms.py::test_without_weight_a_term_is_nothing",
    ),
)
