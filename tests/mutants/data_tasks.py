"""What keeps the answers of the data tasks hidden, and their graders from being fooled."""

from __future__ import annotations

from tests.mutants import Mutant

_LANGUAGE = "tests/unit/tasks/test_shipped_language.py"
_LEARNS = f"{_LANGUAGE}::test_a_model_may_learn_while_it_reads"
_REFUSED = f"{_LANGUAGE}::test_a_broken_or_cheating_model_is_told_so"
_READS = "tasks/languageModel/grader/grade.py"
_DATA = "tests/unit/tasks/test_shipped_data.py"
_EXPLAINED = f"{_DATA}::test_a_submission_that_cannot_be_graded_is_explained"

LANGUAGE = (
    Mutant(
        "a language model is told of a character after its weights",
        _READS,
        "        before = character\n",
        "        before = text[len(bits) : len(bits) + 1]\n",
        (f"{_LANGUAGE}::test_a_model_is_told_what_came_and_not_what_comes",),
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
