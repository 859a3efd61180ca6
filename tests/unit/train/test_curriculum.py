"""When a source goes on to its next level, and what a resumed run knows of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import verifiers.v1 as vf

from air.env.config import ResearchEnvConfig
from air.errors import ConfigError
from air.train.config.curriculum_config import LevelsConfig, TurnStagesConfig, check_curricula
from air.train.config.env_source import EnvSource
from air.train.curriculum import Curriculum, Levels
from air.train.loop.rollout import Group, Rollout, Source, prompts

EASY, HARD, HARDEST = "question:gsm8k-level1", "question:gsm8k-level2", "question:gsm8k-level3"
TASKS = (EASY, HARD, HARDEST)


def of(*tasks: str, name: str = "s") -> EnvSource:
    env = ResearchEnvConfig.model_validate({"taskset": {"id": "air", "tasks": list(tasks)}})
    return EnvSource.model_construct(name=name, env=env)


def levels(*, ahead: int = 0, **config: Any) -> Levels:
    settings = LevelsConfig(**{"window": 4, "promote_at": 0.5, **config})
    return Levels(settings, of(*TASKS), ahead=ahead)


def played(task: str, *successes: float | None, source: str = "s") -> Group:
    """A group of episodes of the task; None for one that failed."""
    return Group(
        [
            Rollout(
                source,
                task,
                [SimpleNamespace(reward=10.0, metrics={"success": success})],
                error="" if success is not None else "the server is gone",
            )
            for success in successes
        ]
    )


def level_of(one: Levels, ahead: int = 0) -> int | None:
    env: Any = None
    tasks: list[Any] = [SimpleNamespace(data=SimpleNamespace(task_id=t, name=t)) for t in TASKS]
    source = one.at(Source("s", 1.0, 2, env, tasks), ahead)
    assert source.level is not None
    assert [task.data.task_id for task in source.tasks] == [TASKS[source.level - 1]]
    return source.level


def test_the_next_level_begins_when_a_full_window_reaches_the_rate() -> None:
    one = levels()
    metrics, message = one.record([played(EASY, 1.0, 1.0, None), played(EASY, 1.0)], 1)
    assert (metrics, message) == ({"curriculum/s/level": 1.0, "curriculum/s/success": 1.0}, "")
    # Four episodes count now; the failed one and another source's do not.
    others = played(EASY, 0.0, 0.0, source="other")
    metrics, message = one.record([played(EASY, None, 0.0), others], 2)
    assert metrics == {"curriculum/s/level": 1.0, "curriculum/s/success": 0.75}
    assert message.startswith(f"source s: level 2 of 3 ({HARD}) from step 3 on; success 0.75")
    assert level_of(one) == 2
    # The window is empty again, and holds the last four.
    assert one.record([played(HARD, 0.0, 1.0, 0.0)], 3)[0]["curriculum/s/success"] == 1 / 3
    assert one.record([played(HARD, 0.0)], 4)[1] == ""
    assert one.record([played(HARD, 1.0, 1.0)], 5)[1].startswith("source s: level 3 of 3")
    for step in (6, 7):  # the last level stays
        metrics, message = one.record([played(HARDEST, 1.0, 1.0, 1.0, 1.0)], step)
        assert (metrics["curriculum/s/level"], message) == (3.0, "")


def test_with_overlap_a_promotion_counts_one_step_later() -> None:
    one = levels(ahead=1)
    assert [level_of(one, ahead) for ahead in (0, 1)] == [1, 1]
    assert "from step 3 on" in one.record([played(EASY, 1.0, 1.0, 1.0, 1.0)], 1)[1]
    assert [level_of(one, ahead) for ahead in (0, 1)] == [1, 2]
    # Step 2 was drawn before, from the first level: its episodes say nothing about the second.
    without = levels()  # goes on without overlap, and keeps the promotion
    without.load_state_dict(one.state_dict())
    assert level_of(without) == 2
    metrics, _ = one.record([played(EASY, 1.0, 1.0, 1.0, 1.0)], 2)
    assert metrics == {"curriculum/s/level": 1.0}
    assert [level_of(one, ahead) for ahead in (0, 1)] == [2, 2]


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_resumed_curriculum_goes_on_as_one_that_was_never_stopped(ahead: int) -> None:
    whole = levels(ahead=ahead, window=3, promote_at=0.6)
    for step in range(1, 12):
        before = json.loads(json.dumps(whole.state_dict()))
        again = levels(ahead=ahead, window=3, promote_at=0.6)
        again.load_state_dict(before)
        groups = [played(TASKS[(level_of(whole) or 1) - 1], 1.0, float(step % 2))]
        assert again.record(groups, step) == whole.record(groups, step)
        assert again.state_dict() == whole.state_dict()
    assert level_of(whole) == 3
    fewer = Levels(LevelsConfig(), of(EASY, HARD), ahead=ahead)
    with pytest.raises(ConfigError, match=r"at level 3, and there are 2.*as they were"):
        fewer.load_state_dict(whole.state_dict())


def test_each_level_has_its_own_place_in_its_prompts() -> None:
    env: Any = None
    tasks: Any = list("abcd")
    first, second = (Source("s", 1.0, 2, env, tasks, level=level) for level in (1, 2))
    batch, positions = prompts([first], 4, 0, 1, {})
    assert [task for _, task in batch] == ["a", "b"]
    batch, positions = prompts([second], 4, 0, 2, positions)
    assert [task for _, task in batch] == ["a", "b"]
    assert positions == {"s 0 level 1": 2, "s 0 level 2": 2}


def test_a_metric_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no fact 'wins'.*use .*reward.*success"):
        levels(metric="wins").check()
    levels(metric="reward").check()
    nothing = Group([Rollout("s", EASY, [SimpleNamespace(reward=1.0, metrics={})])])
    with pytest.raises(ConfigError, match="has no metric 'success'"):
        levels().values([nothing])
    assert levels(metric="reward").values([nothing]) == [1.0]


def other_source() -> EnvSource:
    return EnvSource.model_construct(name="plain", env=vf.SingleAgentEnvConfig())


@pytest.mark.parametrize(
    ("config", "sources", "message"),
    [
        ({}, [of(EASY)], "two levels or more"),
        ({"levels": [[EASY], []]}, [of(EASY)], "two levels or more"),
        ({"levels": [[EASY], [HARDEST]]}, [of(EASY, HARD)], f"leaves out the task '{HARD}'"),
        ({"levels": [[EASY], [EASY]]}, [of(EASY)], f"which '{EASY}' is not"),
        ({}, [of(EASY, HARD), of(EASY, name="t")], "needs `source`"),
        ({"source": "u"}, [of(EASY, HARD)], "0 sources have this name"),
        ({"source": "s"}, [of(EASY, HARD), of(HARD)], "2 sources have this name"),
        ({"source": "plain"}, [other_source(), of(EASY)], "needs the taskset `air`"),
    ],
)
def test_levels_that_do_not_fit_are_refused(
    config: dict[str, Any], sources: Sequence[EnvSource], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        check_curricula([LevelsConfig(**config)], None, sources)


def test_two_tables_for_one_source_are_refused() -> None:
    with pytest.raises(ValueError, match="two tables"):
        check_curricula([LevelsConfig(), LevelsConfig(source="s")], None, [of(EASY, HARD)])
    curriculum = Curriculum([LevelsConfig()], [of(EASY, HARD)], ahead=0)
    assert curriculum.record([], 1) == ({"curriculum/s/level": 1.0}, [])


def test_stages_of_turns() -> None:
    rounds = TurnStagesConfig(max_turns=[10, 20, 30])
    steps = (1, 100, 101, 200, 201, 900)
    assert [rounds.at(step) for step in steps] == [10, 10, 20, 20, 30, 30]
    check_curricula([], rounds, [of(EASY)])
    with pytest.raises(ValueError, match="'s' has other tasks"):
        check_curricula([], rounds, [of(EASY, "titanic")])
    for told in ("question:gsm8k5", "question:sql5", "game:tetris1"):
        with pytest.raises(ValueError, match=f"cannot shorten '{told}'"):
            check_curricula([], rounds, [of(EASY, told)])
    with pytest.raises(ValueError, match="1 or more"):
        TurnStagesConfig(max_turns=[5, 0])
