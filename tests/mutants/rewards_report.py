"""What keeps a reward from luck and from gaming, and a report from flattering a run."""

from __future__ import annotations

from tests.mutants import Mutant

_NOISE = "tests/unit/rewards/test_noise.py"
_TERMS = "tests/unit/rewards/test_terms.py"
_DELTA = "tests/unit/rewards/test_delta.py::test_previous_pays_moves_both_ways"
_REPEATS = "tests/unit/tasks/test_grading_repeats.py"
_ONCE = f"{_REPEATS}::test_without_repeats_an_artefact_is_graded_once"
_PROFILE = "tests/unit/trajectories/test_profile.py"
_REPORT = "tests/unit/trajectories/test_report.py"
_HIGHER = f"{_PROFILE}::test_ratios_where_higher_is_better"

MUTANTS = (
    Mutant(
        "a move within the measured noise earns nothing",
        "air/rewards/delta.py",
        "max(self._scale.noise_floor, self._scale.noise_sigmas * of_the_move)",
        "self._scale.noise_floor",
        (
            f"{_NOISE}::test_luck_cannot_be_farmed_whatever_the_mode",
            "tests/e2e/test_noise.py::test_moves_within_the_noise_earn_nothing_and_real_ones_do",
        ),
        _DELTA,
    ),
    Mutant(
        "the noise of a move is that of both its ends",
        "air/rewards/delta.py",
        "math.hypot(error, self._anchor_error)",
        "error",
        (f"{_NOISE}::test_the_floor_grows_with_the_errors_of_both_ends_of_the_move",),
        _DELTA,
    ),
    Mutant(
        "what was not paid does not become the anchor",
        "air/rewards/delta.py",
        "        if paid:\n",
        "        if True:\n",
        (
            f"{_NOISE}::test_what_was_not_paid_leaves_the_anchors_error_where_it_was",
            "tests/unit/rewards/test_delta.py"
            "::test_moves_under_the_floor_wait_until_they_exceed_it_together",
        ),
        _DELTA,
    ),
    Mutant(
        "an artefact that is graded repeatedly has other seeds each time, and the same ones again",
        "air/tasks/grading.py",
        "split, one) for one in seeds",
        "split, seed) for one in seeds",
        (f"{_REPEATS}::test_every_time_has_a_seed_and_a_box_of_its_own",),
        _ONCE,
    ),
    Mutant(
        "noise that nobody measures cannot be relied on",
        "air/tasks/spec.py",
        "if self.noise_sigmas and self.grader.repeats < 2:",
        "if False:",
        (f"{_REPEATS}::test_what_cannot_be_measured_is_refused",),
        _ONCE,
    ),
    Mutant(
        "taking a bad artefact away earns nothing",
        "air/rewards/terms.py",
        "scale.phi_clip[0] if score is None",
        "0.0 if score is None",
        (f"{_TERMS}::test_taking_a_bad_artefact_away_never_earns_anything",),
        f"{_TERMS}::test_without_weight_a_term_is_nothing",
    ),
    Mutant(
        "time costs no more than all of its weight",
        "air/rewards/terms.py",
        "min(1.0, seconds / limit)",
        "(seconds / limit)",
        (f"{_TERMS}::test_time_costs_its_share_of_the_limit_and_never_more_than_all",),
        f"{_TERMS}::test_without_weight_a_term_is_nothing",
    ),
    Mutant(
        "graders' time is not the agent's",
        "air/worlds/research/world.py",
        "others = self.times.grading + self.times.recording",
        "others = self.times.recording",
        ("tests/e2e/test_reward_terms.py::test_the_agents_time_is_without_the_graders",),
        "tests/e2e/test_reward_terms.py::test_by_default_only_deltas_are_paid",
    ),
    Mutant(
        "a score worse than the baseline is infeasible",
        "air/trajectories/profile.py",
        'return score >= baseline if direction == "higher" else score <= baseline',
        "return True",
        (f"{_PROFILE}::test_what_is_feasible", _HIGHER),
        f"{_PROFILE}::test_the_end_of_the_axis",
    ),
    Mutant(
        "a negative score is infeasible",
        "air/trajectories/profile.py",
        "if score is None or score < 0:",
        "if score is None:",
        (f"{_PROFILE}::test_a_negative_baseline_is_infeasible_itself",),
        _HIGHER,
    ),
    Mutant(
        "a method pays for a task that it did not solve",
        "air/trajectories/profile.py",
        "found.get(method, worst * MARGIN)",
        "found.get(method, 1.0)",
        (f"{_PROFILE}::test_a_method_that_missed_a_task_pays_for_it", _HIGHER),
        f"{_PROFILE}::test_the_end_of_the_axis",
    ),
    Mutant(
        "a score of zero is a score",
        "air/trajectories/outcome.py",
        "if score is not None]",
        "if score]",
        (f"{_REPORT}::test_best_attempt_and_last_submission_of_an_episode",),
        f"{_REPORT}::test_the_steps_of_a_training_run",
    ),
    Mutant(
        "the best attempt is by the metric's direction",
        "air/trajectories/outcome.py",
        'return max(there) if self.start.direction == "higher" else min(there)',
        "return max(there)",
        (f"{_REPORT}::test_best_attempt_and_last_submission_of_an_episode",),
        f"{_REPORT}::test_the_steps_of_a_training_run",
    ),
    Mutant(
        "an episode that failed has no score in a report",
        "air/trajectories/outcome.py",
        "if not end.ok or start is None or end.reward is None:",
        "if start is None:",
        (f"{_REPORT}::test_what_failed_or_did_not_end_is_counted_and_never_scored",),
        f"{_REPORT}::test_the_steps_of_a_training_run",
    ),
    Mutant(
        "scores against two baselines are not compared",
        "air/trajectories/report.py",
        "                if then != here:\n",
        "                if False:\n",
        (f"{_REPORT}::test_a_task_that_is_not_the_same_everywhere_is_refused",),
        f"{_REPORT}::test_rows_by_hand",
    ),
)
