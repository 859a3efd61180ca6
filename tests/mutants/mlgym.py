"""What MLGym's evaluations hold to here: no cheat that they let through upstream earns anything."""

from __future__ import annotations

from tests.mutants import Mutant

_GRADE = "air/tasks/sources/mlgym/grader/grade.py"
_EVALUATOR = "air/tasks/sources/mlgym/grader/evaluator.py"
_PLAYER = "air/tasks/sources/mlgym/grader/player.py"
_SOURCE = "air/tasks/sources/mlgym/source.py"
_ATTACKS = "tests/docker/test_mlgym_attacks.py"
_TESTS = "tests/unit/tasks/test_mlgym_grading.py"
_CHECKOUT = "tests/unit/tasks/test_mlgym_checkout.py"
_REACH = f"{_ATTACKS}::test_a_strategy_reaches_nothing_of_the_evaluation"
_IN_SCRIPT = f"{_ATTACKS}::test_code_in_the_script_is_still_a_second_user"
_EARLY = f"{_TESTS}::test_an_early_end_in_the_script_earns_nothing"
_TRICK = f"{_TESTS}::test_a_trick_scores_what_the_honest_strategy_scores"
_FAULT = f"{_TESTS}::test_what_is_wrong_with_a_strategy_is_told"
_NUMPY = f"{_ATTACKS}::test_a_strategy_may_use_numpy"
_CSV = f"{_TESTS}::test_a_score_of_zero_is_a_score"
_SCRIPT = f"{_TESTS}::test_code_that_the_script_imports_can_be_scored"

_APART = (
    Mutant(
        "an MLGym opponent's luck is not a player's business",
        _GRADE,
        "file.touch(0o600)",
        "file.touch(0o644)",
        (f"{_REACH}[the opponent's luck]",),
        _NUMPY,
    ),
    Mutant(
        "the workspace of an MLGym script is closed to a player",
        _GRADE,
        '(place / "workspace").chmod(0o700)',
        '(place / "workspace").chmod(0o755)',
        (f"{_REACH}[the script's workspace]",),
        _NUMPY,
    ),
    Mutant(
        "the report on an MLGym evaluation is closed to a player",
        _GRADE,
        "report.chmod(0o777 if user is not None else 0o700)",
        "report.chmod(0o777)",
        (f"{_REACH}[the report]",),
        _NUMPY,
    ),
    Mutant(
        "an MLGym strategy plays as a second user",
        _GRADE,
        '        "user": second_user(),\n',
        '        "user": None,\n',
        (f"{_REACH}[the script's environment]", f"{_REACH}[the end of the script]"),
        _NUMPY,
    ),
    Mutant(
        "code inside an MLGym script is a second user's",
        _GRADE,
        'return None if how["kind"] == "csv" or how["player"] else second_user()',
        "return None",
        (
            f"{_IN_SCRIPT}[the script itself]",
            f"{_ATTACKS}::test_a_model_is_loaded_by_a_second_user",
        ),
        _NUMPY,
    ),
)

_TRICKS = (
    Mutant(
        "what an MLGym strategy prints is no answer",
        _PLAYER,
        "    for stream in (0, 1, 2):\n",
        "    for stream in (0,):\n",
        (f"{_TRICK}[metrics printed]",),
        _CSV,
    ),
    Mutant(
        "an MLGym strategy answers once a question",
        _EVALUATOR,
        "        if self._rest:\n",
        "        if False:\n",
        (f"{_FAULT}[it answers twice]",),
        f"{_FAULT}[it fails]",
    ),
    Mutant(
        "an MLGym script that ends early vouches for nothing",
        _GRADE,
        "    if not ended.report:\n",
        "    if False:\n",
        (f"{_EARLY}[metrics, then an early end]",),
        _SCRIPT,
    ),
    Mutant(
        "the report on an MLGym evaluation has the evaluator's token",
        _GRADE,
        'said.get("token") == token',
        'said.get("token")',
        (f"{_EARLY}[a report without the token]",),
        _SCRIPT,
    ),
    Mutant(
        "an MLGym evaluation ends before what was registered for its end",
        _EVALUATOR,
        "    os._exit(0)  # whatever was registered for the end would come after the last word\n",
        "",
        (f"{_TESTS}::test_what_is_registered_for_the_end_does_not_speak",),
        _SCRIPT,
    ),
    Mutant(
        "an MLGym score is a finite number",
        _GRADE,
        "        and -sys.float_info.max <= value <= sys.float_info.max\n",
        "",
        (f"{_EARLY}[no number]",),
        _SCRIPT,
    ),
    Mutant(
        "what lies in a replaced MLGym folder is gone",
        _GRADE,
        "    if dest.is_dir():\n        shutil.rmtree(dest)\n    dest.parent",
        "    dest.parent",
        (f"{_TESTS}::test_the_starter_code_of_a_replaced_folder_is_gone",),
        _SCRIPT,
    ),
)

_OURS = (
    Mutant(
        "an MLGym evaluation has no other luck for the same strategy with another comment",
        _GRADE,
        """luck = f"{how['seed']} {args.split} {args.seed}\"""",
        """luck = f"{(args.artefact / how['artefact'][0]).read_bytes()!r} {args.split}\"""",
        (
            "tests/unit/tasks/test_mlgym_episodes.py"
            "::test_new_luck_cannot_be_drawn_with_the_same_strategy",
        ),
        _CSV,
    ),
    Mutant(
        "an MLGym evaluation that fails by itself is our failure",
        _GRADE,
        "        if not error.certain:\n",
        "        if False:\n",
        (f"{_TESTS}::test_answers_that_nothing_can_match_are_our_failure",),
        _CSV,
    ),
    Mutant(
        "what an image lacks for an MLGym evaluation is our failure",
        _GRADE,
        "    check_imports(how)\n",
        "",
        (f"{_TESTS}::test_what_the_image_lacks_is_our_failure",),
        _CSV,
    ),
    Mutant(
        "an MLGym evaluation has other luck for the test, and the same again",
        _EVALUATOR,
        '    random.seed(settings["seed"])\n',
        "",
        (f"{_TESTS}::test_the_luck_of_an_evaluation_is_seeded",),
        _CSV,
    ),
    Mutant(
        "MLGym's answers stay with the grader",
        _SOURCE,
        "            if any(fnmatch.fnmatchcase(name, pattern) for pattern in self.shown):\n"
        "                _copy(",
        "            if True:\n                _copy(",
        (f"{_CHECKOUT}::test_answers_and_unknown_files_stay_with_the_grader",),
        f"{_CHECKOUT}::test_the_checkout_is_only_read",
    ),
    Mutant(
        "whatever decides an MLGym score is in the task's hash",
        _SOURCE,
        "for name, file in (*self._files(), *_below(PROGRAMS)):",
        "for name, file in _below(PROGRAMS):",
        (f"{_CHECKOUT}::test_whatever_decides_a_score_is_in_the_hash",),
        f"{_CHECKOUT}::test_the_checkout_is_only_read",
    ),
)

MUTANTS = (*_APART, *_TRICKS, *_OURS)
