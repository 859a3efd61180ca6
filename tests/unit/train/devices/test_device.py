from __future__ import annotations

from uuid import uuid4

import pytest
import torch

from air.env.config import ResearchEnvConfig
from air.errors import ConfigError, UsageError
from air.sandbox.pool.gpus import Gpu
from air.train.devices import device
from air.train.devices.device import (
    Device,
    bfloat16_warning,
    emulates_bfloat16,
    free_for_training,
    has_bfloat16,
)

A, B, C = (Gpu(number, f"GPU-{letter * 4}") for number, letter in enumerate("abc"))
without_cuda = pytest.mark.skipif(torch.version.cuda is not None, reason="this torch has CUDA")


@pytest.fixture(autouse=True)
def visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@without_cuda
def test_a_torch_without_cuda_trains_on_the_cpu_and_says_why() -> None:
    chosen = device.choose("auto", boxes="auto")
    assert (chosen.torch_device, chosen.gpu) == (torch.device("cpu"), None)
    assert str(chosen) == f"training: on the CPU (torch {torch.__version__} is built without CUDA)"


async def test_a_gpu_is_leased_where_an_event_loop_runs() -> None:
    gpu = Gpu(0, f"GPU-{uuid4()}")
    lease = device.lease_of(gpu)
    assert lease is not None
    assert device.lease_of(gpu) is None
    lease.release()


@without_cuda
@pytest.mark.parametrize("setting", ["cuda", "cuda:1"])
def test_a_gpu_that_cannot_be_used_is_an_error_with_a_remedy(setting: str) -> None:
    with pytest.raises(UsageError) as raised:
        device.choose(setting)
    assert str(raised.value) == (
        f"embedded.device: {setting} cannot be used: torch {torch.__version__} is built without CUDA — "
        "install a build of torch for CUDA, or set it to cpu"
    )


def test_the_cpu_is_taken_as_asked_and_keeps_float32() -> None:
    chosen = device.choose("cpu")
    assert chosen == Device(torch.device("cpu"), "as asked")
    assert chosen.dtype("auto") == torch.float32
    assert chosen.dtype("bfloat16") == torch.bfloat16


def test_only_a_gpu_with_instructions_for_it_trains_in_bfloat16_by_default() -> None:
    assert [has_bfloat16(one) for one in ((7, 5), (8, 0), (9, 0))] == [False, True, True]
    second = torch.device("cuda", 1)
    old, new = Device(second, "free", B), Device(second, "free", B, bfloat16=True)
    assert (old.dtype("auto"), new.dtype("auto")) == (torch.float32, torch.bfloat16)
    assert (old.dtype("bfloat16"), new.dtype("float32")) == (torch.bfloat16, torch.float32)


@pytest.mark.parametrize(
    ("setting", "boxes", "trainer", "expected"),
    [
        ("auto", [], [], [A, B, C]),
        ("auto", ["0"], [], [B, C]),
        ("auto", ["0", "1", "2"], [], []),
        ("auto", "auto", [], [A, B]),  # the last one is for boxes
        ("auto", "auto", ["2"], [C]),
        ("auto", ["0"], ["1"], [B]),
        ("cuda", ["GPU-aaaa"], [], [B, C]),
        ("cuda:1", "auto", [], [B]),
        ("cuda:1", ["1"], [], []),
    ],
)
def test_gpus_of_boxes_are_never_taken(
    setting: str, boxes: list[str], trainer: list[str], expected: list[Gpu]
) -> None:
    assert free_for_training(setting, [A, B, C], boxes=boxes, trainer=trainer) == expected


@pytest.mark.parametrize(
    ("inventory", "inference", "expected"),
    [
        ([A, B, C], A, [A, B]),
        ([A, B, C], C, [A, C]),  # B is for boxes
        ([A, B], A, [A]),
        ([A, B], B, [B]),
        ([A], A, []),
        ([A, B], C, [A]),  # vLLM's GPU is not visible
    ],
)
def test_a_gpu_that_vllm_does_not_use_remains_for_boxes(
    inventory: list[Gpu], inference: Gpu, expected: list[Gpu]
) -> None:
    assert (
        free_for_training("auto", inventory, boxes="auto", trainer=[], inference=inference)
        == expected
    )


def test_the_only_gpu_is_for_boxes_that_may_use_all() -> None:
    assert free_for_training("auto", [A], boxes="auto", trainer=[]) == []
    assert free_for_training("auto", [], boxes="auto", trainer=[]) == []


def test_a_gpu_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"embedded\.device: there is no GPU '7'"):
        free_for_training("cuda:7", [A], boxes=[], trainer=[])


def test_the_gpus_of_boxes_are_those_of_all_environments() -> None:
    first, second = (ResearchEnvConfig(gpus=names) for names in (["0", "1"], ["1", "2"]))
    assert device.gpus_of_boxes([first, object(), second]) == ["0", "1", "2"]
    assert device.gpus_of_boxes([first, ResearchEnvConfig(gpus="auto")]) == "auto"
    assert device.gpus_of_boxes([]) == []


X86 = "processor\t: 0\nflags\t\t: fpu avx512f{}\nbugs\t\t: amx_bf16\n\nprocessor\t: 1\n"


@pytest.mark.parametrize(
    ("cpuinfo", "emulates"),
    [
        (X86.format(""), True),
        (X86.format(" avx512_bf16x"), True),
        (X86.format(" avx512_bf16 x"), False),
        (X86.format(" amx_bf16"), False),
        ("processor\t: 0\nFeatures\t: fp asimd\n", False),
        ("", False),
    ],
    ids=["neither", "another flag", "avx512", "amx", "arm", "no Linux"],
)
def test_a_processor_without_instructions_for_bfloat16(cpuinfo: str, emulates: bool) -> None:
    assert emulates_bfloat16(cpuinfo) == emulates
    cpu = Device(torch.device("cpu"), "as asked")
    assert ("float32" in bfloat16_warning(cpu, torch.bfloat16, cpuinfo)) == emulates
    assert bfloat16_warning(cpu, torch.float32, cpuinfo) == ""
    gpu = Device(torch.device("cuda:0"), "as asked", A)
    assert bfloat16_warning(gpu, torch.bfloat16, cpuinfo) == ""
