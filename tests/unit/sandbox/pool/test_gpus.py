"""Which GPUs there are and which are meant; real ones where there are any."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from air.cli.main import main
from air.errors import ConfigError
from air.sandbox.pool import file_locks, gpu_leases, gpus
from air.sandbox.pool.gpus import Gpu

FOUND = [Gpu(0, "GPU-aa11"), Gpu(1, "GPU-aa22"), Gpu(7, "GPU-bb33")]
THERE = "there are: 0 = GPU-aa11, 1 = GPU-aa22, 7 = GPU-bb33"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (gpus.INVENTORY_ENV, "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


def declare(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(gpus.INVENTORY_ENV, text)


def test_nvml_shows_what_nvidia_smi_shows() -> None:
    expected: list[tuple[int, str]] = []
    if shutil.which("nvidia-smi"):
        asked = ["nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader"]
        rows = subprocess.check_output(asked, text=True).splitlines()
        expected = [(int(index), uuid) for index, uuid in (row.split(", ") for row in rows)]
    found = gpus.inventory()
    assert [(gpu.index, gpu.uuid) for gpu in found] == expected
    assert all(gpu.name for gpu in found)


def test_a_declared_inventory(monkeypatch: pytest.MonkeyPatch) -> None:
    declare(monkeypatch, " 7=GPU-bb33, 0 = GPU-aa11,1=GPU-aa22 ")
    assert gpus.inventory() == FOUND
    declare(monkeypatch, "none")
    assert gpus.inventory() == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("GPU-aa11", "'GPU-aa11' is not INDEX=UUID"),
        ("0=GPU-aa11,", "'' is not INDEX=UUID"),
        ("x=GPU-aa11", "'x=GPU-aa11' is not INDEX=UUID"),
        ("-1=GPU-aa11", "'-1=GPU-aa11' is not INDEX=UUID"),
        ("0=aa11", "'0=aa11' is not INDEX=UUID"),
        ("0=GPU-../../x", "'0=GPU-../../x' is not INDEX=UUID"),
        ("0=GPU-a,0=GPU-b", "'0=GPU-b' names a GPU again"),
        ("0=GPU-a,1=GPU-a", "'1=GPU-a' names a GPU again"),
    ],
)
def test_a_bad_declaration(text: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    declare(monkeypatch, text)
    with pytest.raises(ConfigError) as caught:
        gpus.inventory()
    assert str(caught.value) == f"AIR_GPU_INVENTORY: {said} — write 0=GPU-aaaa,1=GPU-bbbb"


@pytest.mark.parametrize(
    ("wanted", "indices"),
    [
        (["7"], [7]),
        (["7", "0"], [7, 0]),
        (["GPU-aa22"], [1]),
        (["GPU-b", "GPU-aa1"], [7, 0]),
        ("auto", [0, 1, 7]),
        ([], []),
    ],
)
def test_selection(wanted: gpus.GpuSelection, indices: list[int]) -> None:
    assert [gpu.index for gpu in gpus.select(wanted, FOUND)] == indices


def test_a_whole_uuid_that_another_begins_with_is_that_one() -> None:
    found = [Gpu(0, "GPU-aa"), Gpu(1, "GPU-aabb")]
    assert gpus.select(["GPU-aa"], found) == found[:1]


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (["2"], f"gpus: there is no GPU '2' — {THERE}"),
        (["GPU-c"], f"gpus: there is no GPU 'GPU-c' — {THERE}"),
        (["GPU-"], f"gpus: there is no GPU 'GPU-' — {THERE}"),
        (["GPU-aa"], f"gpus: 'GPU-aa' fits several GPUs — {THERE}"),
        (["0", "GPU-aa11"], f"gpus: names a GPU twice — {THERE}"),
        ("7", 'gpus: \'7\' is not a list — write "auto" or ["0"]'),
    ],
)
def test_what_cannot_be_selected(wanted: gpus.GpuSelection, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        gpus.select(wanted, FOUND)
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        ("7,0", [7, 0]),
        ("GPU-aa2", [1]),
        ("1, 1", [1]),
        ("7,5,0", [7]),
    ],
)
def test_auto_heeds_what_is_visible(
    visible: str, indices: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu.index for gpu in gpus.select("auto", FOUND)] == indices
    assert [gpu.index for gpu in gpus.select(["0"], FOUND)] == [0]


def test_auto_without_any(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"^x\.gpus: this machine has no NVIDIA GPU$"):
        gpus.select("auto", [], where="x.gpus")
    for visible in ("", "-1", "NoDevFiles"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        with pytest.raises(ConfigError, match="CUDA_VISIBLE_DEVICES leaves none"):
            gpus.select("auto", FOUND)


def test_boxes_may_not_have_the_runs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(gpus.INVENTORY_ENV, "0=GPU-aa11,1=GPU-aa22,7=GPU-bb33")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    zero, one, seven = gpus.inventory()
    assert gpus.plan(["7"], trainer=["0"], inference=["GPU-aa11", "1"]) == [seven]
    assert gpus.plan("auto") == [zero, one, seven]
    assert gpus.plan("auto", trainer=["0"], inference=["1"]) == [seven]
    with pytest.raises(ConfigError) as caught:
        gpus.plan(["1", "7"], trainer=["0"], inference=["1"])
    assert str(caught.value) == (
        "gpus: the boxes' GPU 1 is in use by the run itself (boxes: 1 = GPU-aa22, 7 = GPU-bb33; "
        "trainer: 0 = GPU-aa11; inference server: 1 = GPU-aa22) — give the boxes GPUs of their own"
    )
    with pytest.raises(ConfigError, match="the boxes' GPU 0, 1, 7 is in use"):
        gpus.plan("auto", trainer=["0", "7"], inference=["1"])
    with pytest.raises(ConfigError, match=r"^trainer_gpus: there is no GPU '3'"):
        gpus.plan("auto", trainer=["3"])


def test_air_gpus(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(file_locks.FOLDER_ENV, f"{tmp_path}/locks")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    declare(monkeypatch, "none")
    assert main(["gpus"]) == 0
    (only,) = capsys.readouterr().out.splitlines()
    assert only.startswith("no NVIDIA GPU on this machine")

    declare(monkeypatch, "0=GPU-aa11,1=GPU-aa22,7=GPU-bb33")
    whole = file_locks.acquire("GPU-aa22.0", run="alone")
    together = file_locks.acquire("GPU-bb33.0", shared=True)
    shares = [file_locks.acquire(f"GPU-bb33.{slot}", run=f"part{slot}") for slot in (1, 3)]
    assert whole is not None
    assert together is not None
    assert None not in shares
    assert main(["gpus"]) == 0
    head, zero, one, seven, more = capsys.readouterr().out.splitlines()
    assert head.split() == ["INDEX", "UUID", "NAME", "MEMORY", "SLOTS", "HELD", "BY", "CONTAINERS"]
    assert zero.split() == ["0", "GPU-aa11", "-", "-", "free", "-", "-"]
    assert one.split()[:5] == ["1", "GPU-aa22", "-", "-", "whole"]
    assert "run alone" in one
    assert seven.split()[:6] == ["7", "GPU-bb33", "-", "-", "2", "shared"]
    assert "run part1" in seven
    assert "run part3" in more
    assert gpu_leases.holders(FOUND[0]) == {}
