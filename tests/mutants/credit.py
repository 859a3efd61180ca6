"""What keeps each segment's tokens and rewards its own, and each episode counted once."""

from __future__ import annotations

from tests.mutants import Mutant

_CREDIT = "tests/unit/env/test_credit.py"
_SAMPLES = "tests/unit/train/test_samples.py"
_PARTS = "tests/unit/train/test_parts.py"
_RANDOM = f"{_CREDIT}::test_random_episodes"
_ONE = f"{_CREDIT}::test_an_episode_without_a_validate_is_one_segment"

MUTANTS = (
    Mutant(
        "other segments' tokens are context",
        "air/env/credit.py",
        '"mask": [False] * len(node.mask), ',
        "",
        (_RANDOM, f"{_CREDIT}::test_the_segments_of_a_recorded_episode"),
        _ONE,
    ),
    Mutant(
        "a segment's trace ends where the segment ends",
        "air/env/credit.py",
        "enumerate(trace.nodes[: segment.end])",
        "enumerate(trace.nodes)",
        (_RANDOM, f"{_CREDIT}::test_the_segments_of_a_recorded_episode"),
        _ONE,
    ),
    Mutant(
        "no segment is without a reply",
        "air/env/credit.py",
        'if any(sampled[start : payment["nodes"]]):',
        "if True:",
        (f"{_CREDIT}::test_a_validate_to_which_nothing_was_said_joins_the_one_before",),
        _ONE,
    ),
    Mutant(
        "what arises after the last validate is not lost",
        "air/env/credit.py",
        "    found[-1].end = len(sampled)\n    found[-1].pay(unpaid.terms)\n",
        "    found[-1].end = len(sampled)\n",
        (f"{_CREDIT}::test_what_is_said_after_a_submit_belongs_to_it",),
        _ONE,
    ),
    Mutant(
        "an episode's metrics are there once",
        "air/env/credit.py",
        "update = {} if last else ONLY_LAST",
        "update: dict[str, Any] = {}",
        (f"{_CREDIT}::test_the_segments_of_a_recorded_episode",),
        _ONE,
    ),
    Mutant(
        "a failed episode is not split into traces that look well",
        "air/env/credit.py",
        "    if not trace.ok:\n        return [trace]\n",
        "",
        (f"{_CREDIT}::test_a_failed_episode_stays_one_trace_that_is_failed",),
        _ONE,
    ),
    Mutant(
        "a penalty is noted at the reply that caused it",
        "air/env/episode.py",
        "        self.asked = {}\n        self._note(ends=False)\n",
        "        self.asked = {}\n",
        ("tests/e2e/test_credit.py::test_a_penalty_is_noted_at_its_reply",),
        _ONE,
    ),
    Mutant(
        "each episode has one vote in a segment's baseline",
        "air/train/algorithms/episode_baselines.py",
        "found.append([advantage + (reward - mean) for reward in parts])",
        "found.append([advantage for reward in parts])",
        (
            f"{_PARTS}::test_the_readmes_example",
            f"{_SAMPLES}::test_the_baseline_is_the_mean_over_episodes_in_both_credits",
        ),
        f"{_PARTS}::test_one_part_an_episode_is_the_estimators_own_advantage",
    ),
    Mutant(
        "an episode that has ended still counts in later turns' baselines",
        "air/train/algorithms/episode_baselines.py",
        "left = [None if parts is None else math.fsum(parts[turn:]) for parts in rewards]",
        "left = [math.fsum(p[turn:]) if p is not None and p[turn:] else None for p in rewards]",
        (f"{_PARTS}::test_the_readmes_example",),
        f"{_PARTS}::test_one_part_an_episode_is_the_estimators_own_advantage",
    ),
    Mutant(
        "a reply that branches share is trained once",
        "air/train/loop/samples.py",
        "sampled and first for sampled",
        "sampled for sampled",
        (f"{_SAMPLES}::test_a_reply_that_branches_share_is_trained_in_the_first_alone",),
        f"{_SAMPLES}::test_the_readmes_example",
    ),
    Mutant(
        "a step's reward is the sum over an episode's traces",
        "air/train/loop/rollout.py",
        "return sum(float(trace.reward) for trace in self.traces) if self.ok else 0.0",
        "return float(self.trace.reward) if self.ok else 0.0",
        (f"{_SAMPLES}::test_a_steps_numbers_count_an_episode_once_in_both_credits",),
        f"{_SAMPLES}::test_the_readmes_example",
    ),
)
