"""What keeps the answers of the data tasks hidden, and their graders from being fooled."""

from __future__ import annotations

from tests.mutants import Mutant

_ATTACKS = "tests/docker/test_data_task_attacks.py"
_REACH = f"{_ATTACKS}::test_the_hidden_text_is_out_of_a_models_reach"
_LINGERS = f"{_ATTACKS}::test_a_model_that_lingers_prints_and_draws_luck_is_graded_as_it_answers"
_LANGUAGE = "tests/unit/tasks/test_shipped_language.py"
_LEARNS = f"{_LANGUAGE}::test_a_model_may_learn_while_it_reads"
_REFUSED = f"{_LANGUAGE}::test_a_broken_or_cheating_model_is_told_so"
_READS = "tasks/languageModel/grader/grade.py"
_SANDBOX = "tasks/languageModel/grader/sandbox.py"
_DATA = "tests/unit/tasks/test_shipped_data.py"
_TABLE = "tasks/amesHousing/grader/table.py"
_EXPLAINED = f"{_DATA}::test_a_submission_that_cannot_be_graded_is_explained"
_AMES = f"{_DATA}::test_the_metrics_of_house_prices_are_those_of_their_formulas"

LANGUAGE = (
    Mutant(
        "a language model is told of a character after its weights",
        _READS,
        "        bits.append(-log2(probability(model.weights(), ALPHABET.index(character))))\n"
        "        model.tell(character)\n",
        "        model.tell(character)\n"
        "        bits.append(-log2(probability(model.weights(), ALPHABET.index(character))))\n",
        (f"{_LANGUAGE}::test_a_model_is_told_of_a_character_only_after_it_said_its_weights",),
        _LEARNS,
    ),
    Mutant(
        "a language model's probabilities sum to one",
        _READS,
        "weights[which] / total",
        "weights[which]",
        (f"{_LANGUAGE}::test_equal_weights_of_any_size_need_the_bits_of_the_alphabet",),
        f"{_REFUSED}[zero]",
    ),
    Mutant(
        "no character has probability zero",
        _READS,
        " + SHARE / SYMBOLS",
        "",
        (f"{_LANGUAGE}::test_all_weight_on_one_character",),
        f"{_REFUSED}[zero]",
    ),
    Mutant(
        "a language model's weights are not negative, huge or NaN",
        _READS,
        "if not all(0 <= weight <= LARGEST for weight in weights):",
        "if False:",
        (f"{_REFUSED}[negative]", f"{_REFUSED}[nan]", f"{_REFUSED}[huge]"),
        _LEARNS,
    ),
    Mutant(
        "what a language model writes before its turn is no answer",
        _SANDBOX,
        'if answer[:1] != b"P":',
        "if False:",
        (f"{_REFUSED}[stolen pipe]",),
        _LEARNS,
    ),
    Mutant(
        "what a language model prints is no answer",
        _SANDBOX,
        "for fd in (0, 1, 2):",
        "for fd in ():",
        (f"{_LANGUAGE}::test_what_a_model_prints_changes_nothing",),
        _LEARNS,
    ),
    Mutant(
        "a language model runs as a second user",
        _SANDBOX,
        "                **who,\n",
        "",
        (f"{_REACH}[text]", f"{_REACH}[memory of the grader]"),
        f"{_ATTACKS}::test_a_broken_or_cheating_model_is_told_so[is not finite]",
    ),
    Mutant(
        "the hidden text is the grader's alone",
        _READS,
        "        HERE.chmod(0o700)",
        "        HERE.chmod(0o755)",
        (f"{_REACH}[text]", f"{_REACH}[listing]"),
        f"{_REACH}[kill the grader]",
    ),
    Mutant(
        "a language model has limited processor time",
        _SANDBOX,
        '("CPU", 10), ',
        "",
        (f"{_ATTACKS}::test_a_broken_or_cheating_model_is_told_so[spins]",),
        _LINGERS,
    ),
    Mutant(
        "no hidden paragraph can be recited from a known one",
        "tasks/languageModel/data.py",
        "if not ends & seen:",
        "if True:",
        (f"{_LANGUAGE}::test_no_hidden_paragraph_begins_or_ends_like_another",),
        _LEARNS,
    ),
)

TABLES = (
    Mutant(
        "every number that is asked for is there",
        _TABLE,
        "    if missing:\n",
        "    if missing == len(answers):\n",
        (f"{_EXPLAINED}[amesHousing]",),
        _AMES,
    ),
    Mutant(
        "no number is there twice",
        _TABLE,
        "if name_of_row in found:",
        "if False:",
        (f"{_EXPLAINED}[amesHousing]",),
        _AMES,
    ),
    Mutant(
        "a number is finite and in its range",
        _TABLE,
        "if not low <= number <= high:",
        "if number != number:",
        (
            f"{_DATA}::test_what_is_no_number_in_the_range_is_refused[inf-amesHousing]",
            f"{_DATA}::test_what_is_no_number_in_the_range_is_refused[-1e12-amesHousing]",
        ),
        _AMES,
    ),
    Mutant(
        "no series goes on after the cut of the rest",
        "tasks/forecasting/data.py",
        "        past = values[:HISTORY]\n",
        "        past = values[: HISTORY + number % 2]\n",
        (f"{_DATA}::test_nothing_after_the_cut_is_shown_of_any_series",),
        f"{_EXPLAINED}[forecasting]",
    ),
    Mutant(
        "no review is in two splits",
        "tasks/foodReviews/data.py",
        "found.setdefault(key, ",
        "found.setdefault(str(len(found)), ",
        (f"{_DATA}::test_no_review_is_in_two_splits",),
        f"{_EXPLAINED}[foodReviews]",
    ),
    Mutant(
        "the numbers of rated movies say nothing",
        "tasks/recommendation/data.py",
        "    rng.shuffle(names)\n",
        "",
        (f"{_DATA}::test_users_and_movies_are_numbered_anew",),
        f"{_EXPLAINED}[recommendation]",
    ),
)

MUTANTS = (*LANGUAGE, *TABLES)
