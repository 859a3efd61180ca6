"""The plan of a run: every number worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from air.train.prime_rl.throughput import Load, Source, Task, impossible, plan, workers


def load(*sources: Source, batch: int, in_flight: int, bound: int | None = 8) -> Load:
    return Load(sources, batch, in_flight, host_boxes=128, bound=bound)


def test_episodes_in_flight_bound_a_step() -> None:
    # 64 episodes of 600 s, 32 at once: two rounds of 600 s. Each is half a step long.
    found = plan(load(Source("a", (Task("t", 600),), boxes=64), batch=64, in_flight=32))
    assert found.step_seconds == 1200
    assert found.fullest == "the episodes in flight"
    assert [age.steps for age in found.ages] == [0.5]
    assert (found.boxes, found.gpu_slots) == (32, 0)
    assert not found.absurd()


def test_boxes_bound_a_step_and_the_rest_wait() -> None:
    # 40 episodes of 100 s in 10 boxes: 400 s. 10 of 30 are played, 20 wait for 20/40 of a step.
    found = plan(load(Source("a", (Task("t", 100),), boxes=10), batch=40, in_flight=30))
    assert found.step_seconds == 400
    assert found.ages[0].steps == pytest.approx(100 / 400 + 20 / 40)
    assert found.boxes == 10


def test_gpu_slots_bound_a_step() -> None:
    # Ratios 1 and 3 of 16 episodes: 4 and 12. With a GPU: 4 of 900 s, each on 2 of 1 x 2 slots, so one
    # after the other: 3600 s. Without: 12 of 100 s, 16 at once.
    games = Source("games", (Task("g", 100),), ratio=3, boxes=16)
    nets = Source("nets", (Task("n", 900, gpus=1),), boxes=8, gpus=("7",), slots_per_gpu=2)
    found = plan(load(nets, games, batch=16, in_flight=16))
    assert found.step_seconds == 4 * 900 / 2
    assert found.fullest == "the slots of GPU 7"
    # Busy: (3600 + 1200) / 1800 = 2 2/3; the other 13 1/3 wait for nets: 13 1/3 / 4 steps.
    ages = {age.name: age.steps for age in found.ages}
    assert ages["games"] == pytest.approx(100 / 1800)
    assert ages["nets"] == pytest.approx(0.5 + 10 / 3)
    assert found.gpu_slots == 2


def test_a_box_of_two_gpus_takes_two_slots() -> None:
    source = Source("a", (Task("t", 100, gpus=2),), boxes=8, gpus=("0", "1", "2", "3"))
    assert plan(load(source, batch=6, in_flight=6)).step_seconds == 6 * 100 * 2 / 4


def test_sources_share_the_slots_of_a_gpu() -> None:
    one = Source("a", (Task("t", 100, gpus=1),), boxes=8, gpus=("7",))
    found = plan(load(one, replace(one, name="b"), batch=4, in_flight=8))
    assert (found.step_seconds, found.gpu_slots) == (400, 1)


def test_the_largest_slots_per_gpu_of_the_sources_counts() -> None:
    # Twice 2 episodes of 100 s in 2 slots: 200 s. The source without a GPU task counts nowhere.
    one = Source("a", (Task("t", 100, gpus=1),), boxes=8, gpus=("7",), slots_per_gpu=2)
    other = replace(one, name="b", slots_per_gpu=1)
    games = Source("games", (Task("g", 1),), boxes=8, gpus=("7",), slots_per_gpu=4)
    for sources in ((one, other, games), (games, other, one)):
        found = plan(load(*sources, batch=6, in_flight=8))
        assert (found.step_seconds, found.gpu_slots) == (200, 2)


def test_group_sizes_weigh_and_tasks_of_a_source_take_turns() -> None:
    # Prompts 1 : 1, groups of 8 and 4: of 12 episodes 8 and 4; the first source has two tasks, 4 each.
    a = Source("a", (Task("x", 60), Task("y", 120)), group_size=8)
    b = Source("b", (Task("z", 30),), group_size=4)
    found = plan(load(a, b, batch=12, in_flight=12))
    assert {age.name: age.share for age in found.ages} == pytest.approx(
        {"a/x": 1 / 3, "a/y": 1 / 3, "b": 1 / 3}
    )
    assert found.step_seconds == (4 * 60 + 4 * 120 + 4 * 30) / 12


def test_too_many_in_flight_are_refused_with_the_reason() -> None:
    # 1024 in flight, 64 a step: each is 1024/64 = 16 steps old.
    found = plan(load(Source("a", (Task("t", 600),)), batch=64, in_flight=1024))
    assert found.ages[0].steps == pytest.approx(16)
    assert "100%" in found.absurd()
    assert "max_inflight" in found.absurd()
    assert not plan(load(Source("a", (Task("t", 600),)), batch=64, in_flight=512)).absurd()


def test_a_few_long_episodes_are_a_warning() -> None:
    # 15 of 100 s and 1 of 10,000 s, 16 in flight: a step takes 11,500/16 s, the long one 13.9 of them.
    short, long = Source("s", (Task("s", 100),), ratio=15), Source("l", (Task("l", 10_000),))
    found = plan(load(short, long, batch=16, in_flight=16))
    assert [age.name for age in found.ages_over_bound] == ["l"]
    assert found.ages_over_bound[0].steps == pytest.approx(10_000 * 16 / 11_500)
    assert not found.absurd()
    assert any("warning" in line and " l " in line for line in found.lines())


def test_a_run_of_years_is_refused() -> None:
    # 21 episodes of four hours, one at a time: 84 h, and 200 of them 700 days.
    nets = Source("nets", (Task("n", 14_400, gpus=1),), boxes=8, gpus=("7",))
    asked = load(nets, batch=21, in_flight=21)
    found = plan(replace(asked, max_steps=200))
    assert found.step_seconds == 21 * 14_400
    for word in ("3.5 days", "700.0 days", "GPU 7"):
        assert word in found.absurd()
    assert not plan(replace(asked, max_steps=10)).absurd()
    assert not plan(asked).absurd()
    assert "days" in plan(load(nets, batch=43, in_flight=43)).absurd()  # 7.2 days a step


def test_a_step_that_waits_takes_its_longest_episode() -> None:
    # Embedded: 8 episodes of 100 s in 16 boxes still take 100 s, and none is off-policy.
    found = plan(load(Source("a", (Task("t", 100),), boxes=16), batch=8, in_flight=8, bound=None))
    assert (found.step_seconds, found.ages_over_bound) == (100, ())
    assert not found.absurd()


def test_more_gpus_than_there_are_is_impossible() -> None:
    source = Source("a", (Task("t", 100, gpus=2),), gpus=("7",))
    assert "takes 2 GPUs" in impossible(load(source, batch=8, in_flight=8))
    unknown = replace(source, gpus=None, elsewhere=True)
    assert impossible(load(unknown, batch=8, in_flight=8)) == ""
    assert plan(load(unknown, batch=8, in_flight=8)).gpu_slots is None


def test_this_machines_boxes_are_bounded_and_anothers_are_not() -> None:
    here = Source("here", (Task("t", 100),), boxes=500)
    there = replace(here, name="there", boxes=40, elsewhere=True)
    found = plan(load(here, there, batch=600, in_flight=600))
    assert found.boxes == 128 + 40


@pytest.mark.parametrize(
    ("in_flight", "most", "count"), [(64, None, 1), (116, None, 2), (1024, None, 9), (1024, 4, 4)]
)
def test_an_elastic_pool_grows_at_nine_tenths(in_flight: int, most: int | None, count: int) -> None:
    assert workers(most=most, multiplex=128, in_flight=in_flight) == count
