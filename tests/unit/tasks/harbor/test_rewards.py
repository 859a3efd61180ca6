"""The reward files of a verifier, and the reward of several steps."""

from __future__ import annotations

import pytest

from air.tasks.sources.harbor import rewards


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b'{"reward": 1}', {"reward": 1.0}),
        (b'{"reward": true}', {"reward": 1.0}),
        (b'{"a": -350, "b": 0.5}', {"a": -350.0, "b": 0.5}),
    ],
)
def test_an_object_of_numbers_is_read(data: bytes, found: dict[str, float]) -> None:
    assert rewards.read_json(data) == found


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"1", b"[1]", b"null", b"{", b'{"reward": NaN}', b'{"reward": null}'),
        *(b'{"reward": "1"}', b'{"reward": {"a": 1}}', b'{"reward": 1e309}', b"\xff"),
        b'{"reward": 1' + b"0" * 400 + b"}",
        b'{"a":' * 100_000,
    ],
)
def test_another_json_file_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"reward\.json"):
        rewards.read_json(data)


@pytest.mark.parametrize(("data", "value"), [(b"1\n", 1.0), (b" -0.5 ", -0.5), (b"1e2", 100.0)])
def test_a_number_is_read(data: bytes, value: float) -> None:
    assert rewards.read_text(data) == {"reward": value}


@pytest.mark.parametrize("data", [b"", b"\n", b"nan", b"inf", b"one", b"1 2", b"\xff"])
def test_another_text_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"reward\.txt"):
        rewards.read_text(data)


def test_the_key_reward_the_only_key_or_the_chosen_key_counts() -> None:
    assert rewards.metrics({"reward": 1.0, "a": 0.0})["reward"] == 1.0
    assert rewards.metrics({"a": 0.25}) == {"a": 0.25, "reward": 0.25}
    assert rewards.metrics({"a": 0.25, "b": 0.5}, "b")["reward"] == 0.5
    for found, key in (({"a": 1.0, "b": 1.0}, ""), ({}, ""), ({"reward": 1.0}, "a")):
        with pytest.raises(ValueError, match="no reward"):
            rewards.metrics(found, key)


def test_the_total_is_the_mean_or_the_last() -> None:
    assert rewards.total([1.0, 0.5], "mean", 0.0) == 0.75
    assert rewards.total([1.0, 0.5], "final", 0.0) == 0.5
    assert rewards.total([1.0, None], "mean", -1.0) == 0.0  # a failed grading is the lowest reward
    assert rewards.total([1.0], "mean", 0.0, unplayed=1) == 0.5
    assert rewards.total([1.0], "final", 0.0, unplayed=1) == 0.0


def test_each_key_of_min_reward_must_be_reached() -> None:
    assert rewards.enough({"reward": 0.5}, None)
    assert rewards.enough({"reward": 0.5}, 0.5)
    assert not rewards.enough({"reward": 0.5}, 0.6)
    assert rewards.enough({"reward": 0.0, "a": 1.0}, {"a": 1.0})
    assert not rewards.enough({"reward": 1.0}, {"a": 0.0})
