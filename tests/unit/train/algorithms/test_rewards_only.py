"""The algorithms that need nothing but rewards, on numbers worked by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, get_args

import pytest

from air import train
from air.errors import ConfigError
from air.train.algorithms import (
    AlgoConfig,
    Algorithm,
    AlgorithmConfig,
    Credit,
    GRPOConfig,
    ScoredGroup,
    ScoredPart,
    grpo,
)
from air.train.algorithms.base import stream_rewards
from air.train.algorithms.episode_baselines import centered
from air.train.algorithms.rewards_only.adpo import ADPOConfig, scale, upper_clip
from air.train.algorithms.rewards_only.grpo_std import GRPOStdConfig, grpo_std
from air.train.algorithms.rewards_only.max_rl import MaxRLConfig, max_rl
from air.train.algorithms.rewards_only.rae import RAEConfig
from air.train.algorithms.rewards_only.reinforce_plus_plus import ReinforcePlusPlusConfig, returns
from air.train.algorithms.rewards_only.reinforce_plus_plus_baseline import (
    ReinforcePlusPlusBaselineConfig,
)
from air.train.algorithms.rewards_only.rloo import rloo
from air.train.config.further_models_config import TeacherConfig
from air.train.config.loss_options import CrossEntropyLossConfig, DefaultLossConfig
from tests.unit.train.test_from_python import SETTINGS


def of(*rewards: float, tokens: int = 1, **options: Any) -> ScoredGroup:
    """A group of episodes with one part each."""
    return ScoredGroup([[ScoredPart(r, tokens)] for r in rewards], **options)


def advantages(algorithm: Algorithm, *groups: ScoredGroup) -> list[Any]:
    """The advantages of a step, part by part: numbers, or lists with one for each token."""
    credits = algorithm.finish(groups, [algorithm(group) for group in groups])
    return [c.advantage for of_group in credits for episode in of_group for c in episode]


def test_grpo_by_hand() -> None:
    assert grpo([1.0, 0.0, 0.5]) == [0.5, -0.5, 0.0]
    assert grpo([0.25, 0.25]) == [0.0, 0.0]
    assert grpo([3.0]) == [0.0]
    assert grpo([]) == []


LENGTHS = [
    [ScoredPart(1.0, 10, input_tokens=5, turns=1)],
    [ScoredPart(1.0, 20, input_tokens=5, turns=2)],
]
LENGTHS.append([ScoredPart(0.0, 20, input_tokens=10, turns=4)])


def test_the_length_penalty_by_hand() -> None:
    """Mean 2/3. Shares .25/2 + .1/2 + .1/4 = .2, .25 + .05 + .05 = .35 and .45; so the rewards become
    1 − .4/3, 1 − .7/3 and −.9/3: 2.6/3, 2.3/3, −.9/3, with the mean 4/9."""
    algorithm = GRPOConfig.model_validate({"length_penalty": {}}).build()
    found = advantages(algorithm, ScoredGroup([*LENGTHS, None]))
    assert found == pytest.approx([3.8 / 9, 2.9 / 9, -6.7 / 9])
    failed = ScoredGroup([[ScoredPart(0.0, 10)], [ScoredPart(0.0, 20)]])
    assert advantages(algorithm, failed) == [0.0, 0.0]
    assert algorithm(ScoredGroup([None, None])) == [[], []]
    # Only the turns count: 1 − 2/3 · 1/4, 1 − 2/3 · 2/4 and −2/3 · 4/4, with the mean 5/18.
    weights = {"num_output_tokens_weight": 0, "num_input_tokens_weight": 0, "num_turns_weight": 1}
    by_turns = GRPOConfig.model_validate({"length_penalty": weights}).build()
    wanted = [10 / 18, 7 / 18, -17 / 18]
    assert advantages(by_turns, ScoredGroup(LENGTHS)) == pytest.approx(wanted)


def test_the_length_penalty_needs_whole_episodes() -> None:
    algo = {"orchestrator": {"algo": {"length_penalty": {"num_turns_weight": 0.2}}}}
    assert train.load(SETTINGS, algo).orchestrator.algo.length_penalty.num_turns_weight == 0.2
    with pytest.raises(ConfigError, match="length_penalty lowers the rewards of whole episodes"):
        train.load(SETTINGS, algo, {"embedded": {"reward_to_go": True}})


def test_grpo_std_by_hand() -> None:
    """1, 0, 0, 1: mean 1/2, squares 4 · 1/4 = 1, over n − 1 = 3; 0.5 / sqrt(1/3) = sqrt(3)/2 = 0.866."""
    wanted = [0.866, -0.866, -0.866, 0.866]
    assert grpo_std([1.0, 0.0, 0.0, 1.0]) == pytest.approx(wanted, abs=1e-4)
    assert grpo_std([0.25, 0.25]) == [0.0, 0.0]
    assert grpo_std([3.0]) == pytest.approx([3.0], abs=1e-5)  # mean 0, standard deviation 1
    assert grpo_std([]) == []


def test_max_rl_by_hand() -> None:
    """1, 0, 0, 0 has the mean 1/4: (1 − 1/4) / (1/4) = 3, and −1 for the others."""
    assert max_rl([1.0, 0.0, 0.0, 0.0]) == [3.0, -1.0, -1.0, -1.0]
    assert max_rl([0.0, 0.0]) == [0.0, 0.0]
    assert max_rl([-1.0, 0.5]) == [0.0, 0.0]  # a mean below 0 says nothing


def test_rloo_by_hand() -> None:
    """Of 1, 0, 0, 1 the others of a 1 have the mean 1/3, those of a 0 the mean 2/3."""
    assert rloo([1.0, 0.0, 0.0, 1.0]) == pytest.approx([2 / 3, -2 / 3, -2 / 3, 2 / 3])
    assert rloo([1.0, None, 0.0]) == [1.0, 0.0, -1.0]
    assert rloo([3.0]) == [0.0]


def test_rae_by_hand() -> None:
    """decay 0.75. a: 1 − 0, b ← 0.25; b: −1 − 0, b ← −0.25; a: 1 − 0.25, b ← 0.4375; then 0 − 0.4375."""
    algorithm = RAEConfig(decay=0.75).build()
    first = ScoredGroup(
        [[ScoredPart(1.0, 1, agent="a"), ScoredPart(-1.0, 1, agent="b")], None], source="game"
    )
    second = ScoredGroup(
        [[ScoredPart(1.0, 1, agent="a")], [ScoredPart(0.0, 1, agent="a")]], source="game"
    )
    other = ScoredGroup([[ScoredPart(1.0, 1, agent="a")]], source="other game")
    assert advantages(algorithm, first) == [1.0, -1.0]
    resumed = RAEConfig(decay=0.75).build()
    resumed.load_state_dict(algorithm.state_dict())
    for one in (algorithm, resumed):
        assert advantages(one, second, other) == [0.75, -0.4375, 1.0]


def test_rae_has_a_baseline_for_each_turn() -> None:
    """decay 0.5; turns earn 1 and 2, to go 3 and 2. Baselines 1.5 and 1; then 3 − 1.5 and 2 − 1."""
    algorithm = RAEConfig(decay=0.5).build()
    group = ScoredGroup([[ScoredPart(1.0, 1), ScoredPart(2.0, 1)]] * 2, reward_to_go=True)
    assert advantages(algorithm, group) == [3.0, 2.0, 1.5, 1.0]


def test_returns_by_hand() -> None:
    """γ = 0.5: 2; 0 + 0.5 · 2 = 1; 1 + 0.5 · 1 = 1.5."""
    assert returns([1.0, 0.0, 2.0], 0.5) == [1.5, 1.0, 2.0]


def test_reinforce_plus_plus_by_hand() -> None:
    """γ = 0.5: returns 0.5, 1 and 0. Mean 0.5, variance (0 + 1/4 + 1/4) / 2 = 1/4, so twice the distances."""
    algorithm = ReinforcePlusPlusConfig(gamma=0.5).build()
    found = advantages(algorithm, ScoredGroup([[ScoredPart(1.0, 2)], None]), of(0.0))
    assert found == [pytest.approx([0.0, 1.0], abs=1e-6), pytest.approx([-1.0], abs=1e-6)]


def test_reinforce_plus_plus_passes_later_turns_on_only_with_reward_to_go() -> None:
    """Turns of one token earn 1 and 2. To go 3 and 2: mean 2.5, variance 1/2. Alone 1 and 2: the reverse."""
    algorithm = ReinforcePlusPlusConfig().build()
    turns, half = [ScoredPart(1.0, 1), ScoredPart(2.0, 1)], math.sqrt(0.5)
    flat = [a for (a,) in advantages(algorithm, ScoredGroup([turns], reward_to_go=True))]
    assert flat == pytest.approx([half, -half], abs=1e-6)
    flat = [a for (a,) in advantages(algorithm, ScoredGroup([turns]))]
    assert flat == pytest.approx([-half, half], abs=1e-6)


def test_a_reward_without_a_token_counts_at_the_token_before() -> None:
    parts = [ScoredPart(1.0, 2), ScoredPart(5.0, 0), ScoredPart(3.0, 1, penalties=[0.5])]
    assert stream_rewards(parts) == [0.0, 6.0, 2.5]


def test_reinforce_plus_plus_baseline_by_hand() -> None:
    """Groups (1 with 2 tokens, 0 with 1) and (4, 2 with 1 each): centred .5 .5 −.5 and 1 −1. The mean of the
    five is 0.1; the squares .16 .16 .36 .81 1.21 sum to 2.7, over 4: 0.675."""
    algorithm = ReinforcePlusPlusBaselineConfig().build()
    first = ScoredGroup([[ScoredPart(1.0, 2)], [ScoredPart(0.0, 1)]])
    root = math.sqrt(0.675)
    wanted = [0.4 / root, -0.6 / root, 0.9 / root, -1.1 / root]
    assert advantages(algorithm, first, of(4.0, 2.0)) == pytest.approx(wanted, abs=1e-6)
    assert advantages(algorithm, of(2.0, 2.0), of(1.0, 1.0)) == [0.0] * 4  # no spread in any group


@pytest.mark.parametrize(
    ("p", "factor", "bound"), [(0.1, 0.6, 0.3), (0.3, 0.6, 0.3), (0.55, 0.8, 0.25), (0.8, 1, 0.2)]
)
def test_adpos_scale_and_bound(p: float, factor: float, bound: float) -> None:
    """The numbers of Agent0 with ε = 0.2."""
    assert scale(p) == pytest.approx(factor)
    assert upper_clip(p, 0.2) == pytest.approx(bound)


def test_adpo_by_hand() -> None:
    """Half of the rewards are positive: p = 0.5, s = 0.6 + 0.4 · 0.4 = 0.76, ε_high = 0.2 + 0.1 · 0.6 = 0.26;
    ± 1 has the standard deviation sqrt(4/3): 0.76 / 1.1547 = 0.6582. A metric of 0.8 has s = 1."""
    credits = ADPOConfig().build()(of(1.0, -1.0, -1.0, 1.0))
    assert [c.advantage for (c,) in credits] == pytest.approx(
        [0.6582, -0.6582, -0.6582, 0.6582], abs=1e-4
    )
    assert [c.clip_high for (c,) in credits] == pytest.approx([0.26] * 4)
    by_metric = ADPOConfig(share="agreement").build()
    credits = by_metric(of(1.0, -1.0, metrics={"agreement": 0.8}))
    assert credits[0][0].clip_high == pytest.approx(0.2)
    assert credits[0][0].advantage == pytest.approx(math.sqrt(0.5), abs=1e-5)
    for metrics in ({}, {"agreement": 1.5}):
        with pytest.raises(
            ConfigError, match=r"algo.share: the metric 'agreement' .* name a metric"
        ):
            by_metric(of(1.0, -1.0, metrics=metrics))


def test_adpo_needs_a_loss_that_clips() -> None:
    with pytest.raises(ConfigError, match=r"'adpo' needs trainer.loss.type = 'ppo_clip'"):
        train.load(SETTINGS, {"orchestrator": {"algo": {"type": "adpo"}}})


@pytest.mark.parametrize(
    ("config", "slope"),
    [(GRPOConfig(), 1.0), (GRPOStdConfig(), math.sqrt(12 / 7)), (MaxRLConfig(), 1 / 1.5)],
    ids=lambda value: getattr(value, "type", ""),
)
def test_segments_are_on_the_scale_of_their_estimator(
    config: AlgorithmConfig, slope: float
) -> None:
    """Segments earn 0.5 and 1.5, the other episode 2: means 1 and 2, so μ = 1.5. σ of
    0.5, 1.5 and 2: the mean is 4/3, the squares 25/36, 1/36 and 16/36 sum to 7/6, over 2: 7/12."""
    group = ScoredGroup([[ScoredPart(0.5, 1), ScoredPart(1.5, 1)], [ScoredPart(2.0, 1)]])
    wanted = [-1.0 * slope, 0.0, 0.5 * slope]
    assert advantages(config.build(), group) == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize(
    ("episodes", "wanted"),
    [
        # Mean 1/4; eight squares of 1/16 over 7: σ = 0.26726, and 0.25 / 0.26726 = 0.93541.
        ([[0.5, 0.0]] * 4, [0.93541, -0.93541] * 4),
        # Mean 0; 1 + 1 + 0 over 2: σ = 1.
        ([[1.0, -1.0], [0.0]], [1.0, -1.0, 0.0]),
        ([[0.5, 0.5], [0.5]], [0.0, 0.0, 0.0]),
        # A group played with one episode: mean 0, σ 1.
        ([[1.0, 0.5]], [1.0, 0.5]),
    ],
)
def test_segments_of_episodes_with_equal_means(
    episodes: list[list[float]], wanted: list[float]
) -> None:
    group = ScoredGroup([[ScoredPart(r, 1) for r in parts] for parts in episodes])
    assert advantages(GRPOStdConfig().build(), group) == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize("estimator", [grpo_std, centered])
def test_a_lone_survivor_of_a_group_has_nothing_to_be_compared_with(
    estimator: Callable[..., list[float]],
) -> None:
    assert estimator([1.0, None, None, None]) == [0.0] * 4
    assert estimator([1.0]) == pytest.approx([1.0], abs=1e-5)


def test_adpo_skips_a_group_that_failed_entirely() -> None:
    assert ADPOConfig(share="agreement").build()(ScoredGroup([None, None])) == [[], []]


def test_adpos_share_counts_rewards_before_penalties() -> None:
    """Both earn 1, so p = 1 and ε_high = 0.2, although a penalty of 2 makes the first total negative."""
    group = ScoredGroup([[ScoredPart(1.0, 1, penalties=[2.0])], [ScoredPart(1.0, 1)]])
    assert ADPOConfig().build()(group)[0][0].clip_high == pytest.approx(0.2)


def test_a_penalty_in_the_reward_does_not_fit_max_rl() -> None:
    changes: dict[str, Any] = {"orchestrator": {"algo": {"type": "max_rl"}}}
    with pytest.raises(ConfigError, match=r"'max_rl' .* set embedded.kl.place = \"loss\""):
        train.load(SETTINGS, changes | {"embedded": {"kl": {}}})
    train.load(SETTINGS, changes | {"embedded": {"kl": {"place": "loss"}}})


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"reference": {"model": "other"}}, "embedded.reference is only for embedded.kl"),
        ({"best_metric": "phi"}, "best_metric .* set orchestrator.eval"),
    ],
)
def test_settings_that_nothing_reads_are_refused(table: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        train.load(SETTINGS, {"embedded": table})


OPD = {"type": "opd", "teacher": {"name": "teacher"}}


@pytest.mark.parametrize(
    ("embedded", "words"),
    [
        (
            {"kl": {}},
            r'kl.place = "reward" has no effect .* \'opd\'.* set embedded.kl.place = "loss"',
        ),
        ({"reward_to_go": True}, r"embedded.reward_to_go has no effect .* remove it"),
        ({"shuffle_rewards": True}, r"embedded.shuffle_rewards has no effect .* remove it"),
    ],
)
def test_settings_of_rewards_do_not_fit_an_algorithm_without_rewards(
    embedded: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        train.load(SETTINGS, {"orchestrator": {"algo": OPD}, "embedded": embedded})
    train.load(SETTINGS, {"embedded": embedded})


def test_a_penalty_in_the_loss_fits_an_algorithm_without_rewards() -> None:
    train.load(SETTINGS, {"orchestrator": {"algo": OPD}, "embedded": {"kl": {"place": "loss"}}})


TEACHER = {"name": "teacher", "base_url": "http://localhost:8001/v1"}


def with_teacher(source: Any = TEACHER, **tables: Any) -> dict[str, Any]:
    algo = {"type": "sft", "sampling": {"source": source}}
    return {"orchestrator": {"algo": algo}, **tables}


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        (with_teacher({"name": "teacher"}), "sampling.source.*set base_url"),
        (with_teacher("policy"), "sampling.source"),
        ({"orchestrator": {"algo": {"type": "sft"}}}, "sampling"),
        (with_teacher(trainer={"loss": {"type": "ipo"}}), "trainer.loss has no effect .*'sft'"),
        (with_teacher(trainer={"loss": {"kl_tau": 0.1}}), "trainer.loss has no effect .*'sft'"),
        (
            with_teacher(embedded={"deterministic": True}),
            "deterministic cannot .* teacher's server",
        ),
        (with_teacher(embedded={"shuffle_rewards": True}), "shuffle_rewards has no effect"),
    ],
)
def test_settings_that_do_not_fit_sft_are_refused(tables: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        train.load(SETTINGS, tables)


def test_sft_brings_its_loss_and_the_model_that_plays() -> None:
    config = train.load(SETTINGS, with_teacher())
    assert config.loss == CrossEntropyLossConfig()
    assert config.sampling_source == TeacherConfig.model_validate(TEACHER)
    # A user's estimator replaces the whole algorithm, as with the others.
    own = {"import_path": "air.train.algorithms.rewards_only.grpo:grpo"}
    replaced = train.load(SETTINGS, with_teacher(embedded={"estimator": own}))
    assert (replaced.loss, replaced.sampling_source) == (DefaultLossConfig(), None)


def test_the_bound_that_adpo_replaces_is_refused() -> None:
    loss: dict[str, Any] = {"type": "ppo_clip", "clip_high": 0.28}
    adpo = {"orchestrator": {"algo": {"type": "adpo"}}}
    with pytest.raises(ConfigError, match=r"clip_high has no effect .* set orchestrator.algo.clip"):
        train.load(SETTINGS, adpo, {"trainer": {"loss": loss}})
    train.load(SETTINGS, adpo, {"trainer": {"loss": loss | {"clip_low": 0.1, "clip_high": 0.2}}})
    train.load(SETTINGS, {"trainer": {"loss": loss}})


def all_types() -> list[type[AlgorithmConfig]]:
    """The configs of the registry whose algorithms need rewards only."""
    return [one for one in get_args(get_args(AlgoConfig)[0]) if "rewards_only" in one.__module__]


@pytest.mark.parametrize("config", all_types(), ids=lambda c: c.model_fields["type"].default)
@pytest.mark.parametrize("reward_to_go", [False, True])
def test_every_algorithm_credits_every_part(
    config: type[AlgorithmConfig], reward_to_go: bool
) -> None:
    algorithm = config().build()
    group = ScoredGroup(
        [[ScoredPart(1.0, 3), ScoredPart(0.5, 2)], None, [ScoredPart(0.0, 1)]],
        reward_to_go=reward_to_go,
    )
    (credits,) = algorithm.finish([group], [algorithm(group)])
    assert [len(episode) for episode in credits] == [2, 0, 1]
    for episode, parts in zip(credits, group.episodes, strict=True):
        for credit, part in zip(episode, parts or [], strict=True):
            assert all(map(math.isfinite, credit.per_token(part.tokens)))
    assert any(c.per_token(n)[0] for e in credits for c, n in zip(e, (3, 2), strict=False))


@pytest.mark.parametrize("estimator", [grpo, grpo_std, max_rl, rloo])
def test_masked_episodes_do_not_count(estimator: Callable[..., list[float]]) -> None:
    with_it, without = estimator([1.0, None, 0.0]), estimator([1.0, 0.0])
    assert with_it == [without[0], 0.0, without[1]]
    assert estimator([None, None]) == [0.0, 0.0]
    with pytest.raises(ValueError, match="finite"):
        estimator([1.0, math.nan])


def test_a_penalty_lowers_a_parts_reward() -> None:
    """1 − (0.25 + 0.25) against 0: ± 0.25."""
    group = ScoredGroup(
        [[ScoredPart(1.0, tokens=2, penalties=[0.25, 0.25])], [ScoredPart(0.0, tokens=1)]]
    )
    assert GRPOConfig().build()(group) == [[Credit(0.25)], [Credit(-0.25)]]
