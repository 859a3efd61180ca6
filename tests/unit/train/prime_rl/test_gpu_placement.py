"""Which GPU is whose."""

from __future__ import annotations

import pytest

from air.errors import ConfigError
from air.train.prime_rl.gpu_placement import GpuRequest, Placement, assumed, place

EIGHT = assumed(8)
FULL = GpuRequest(1, 5, ("0",), ("2", "3", "4", "5", "6"), (["7"],))


def indices(placed: Placement) -> dict[str, list[int]]:
    names = ("inference", "trainer", "boxes", "unused", "visible")
    return {name: [gpu.index for gpu in getattr(placed, name)] for name in names}


def test_the_files_own_names_decide_and_their_order_is_prime_rls() -> None:
    assert indices(place(FULL, EIGHT)) == {
        "inference": [0],
        "trainer": [2, 3, 4, 5, 6],
        "boxes": [7],
        "unused": [1],
        "visible": [0, 2, 3, 4, 5, 6],
    }


def test_the_order_is_by_position_not_by_number() -> None:
    placed = indices(place(GpuRequest(2, 1), EIGHT, flag_gpus=["5", "3", "4"]))
    assert (placed["inference"], placed["trainer"]) == ([5, 3], [4])
    assert placed["visible"] == [5, 3, 4]


def test_without_names_boxes_keep_theirs() -> None:
    placed = indices(place(GpuRequest(1, 1, boxes=(["0"],)), EIGHT))
    assert (placed["inference"], placed["trainer"], placed["boxes"]) == ([1], [2], [0])


def test_what_is_visible_counts_where_nothing_else_is_said() -> None:
    placed = indices(place(GpuRequest(1, 1), EIGHT, visible=["6", "2"]))
    assert (placed["inference"], placed["trainer"]) == ([6], [2])


def test_one_gpu_twice_is_shared() -> None:
    placed = place(GpuRequest(1, 1, ("0",), ("0",)), assumed(1))
    assert placed.shared
    assert indices(placed)["visible"] == [0, 0]
    assert place(GpuRequest(1, 1), EIGHT, flag_gpus=["3", "3"]).shared
    assert not place(FULL, EIGHT).shared


def test_auto_takes_what_is_shown_beyond_the_runs_own() -> None:
    request = GpuRequest(1, 1, ("0",), ("1",), ("auto",))
    assert indices(place(request, EIGHT, flag_gpus=["0", "1", "4", "5"]))["boxes"] == [4, 5]


@pytest.mark.parametrize(
    ("settings", "given", "words"),
    [
        (FULL, ["7", "2", "3", "4", "5", "6"], ["inference_gpus", "says 0", "would be 7"]),
        (
            GpuRequest(1, 5, boxes=(["4"],)),
            ["0", "1", "2", "3", "4", "5"],
            ["GPU 4", "boxes", "6, 7"],
        ),
        (GpuRequest(1, 1, ("0",), ("1",), (["1", "2"],)), None, ["GPU 1", "trainer 1"]),
        (GpuRequest(1, 5), ["0", "1"], ["trainer 5", "sees 2: 0, 1", "--gpus"]),
        (GpuRequest(1, 1), ["0", "9"], ["--gpus", "'9'"]),
        (GpuRequest(1, 1, boxes=("auto",)), None, ["auto", "inference_gpus and trainer_gpus"]),
        (GpuRequest(1, 1, ("0",), ("1",), ("auto",)), None, ["auto", "none"]),
    ],
)
def test_what_cannot_be_is_refused(
    settings: GpuRequest, given: list[str] | None, words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        place(settings, EIGHT, flag_gpus=given)
    for word in words:
        assert word in str(caught.value)
