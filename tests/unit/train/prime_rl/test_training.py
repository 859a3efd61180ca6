"""A training with prime-rl as a stage: its model is handed on, and an interrupted one continues."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from air.errors import InfrastructureError, MissingError, UsageError
from air.train.config import overrides
from air.train.model import policy
from air.train.prime_rl.training import PrimeTraining
from tests.fork_server import of_this_run
from tests.unit.train.prime_rl.checkout import checkout
from tests.until import until

pytestmark = pytest.mark.slow

LAUNCHER = Path(__file__).with_name("training_launcher.py")
CONVERTS = "prime-rl: converts the last checkpoint"
STOPS = "prime-rl: stops when the checkpoint is converted"
WITHOUT_A_THREAD = """
import asyncio, json, sys, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from air.train.prime_rl.training import PrimeTraining

settings, said, may_end = json.loads(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])

def say(text):
    with said.open("a") as file:
        file.write(text + "\\n")

def wait():
    while not may_end.exists():
        time.sleep(0.01)

async def main():
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    loop.run_in_executor(None, wait)
    await PrimeTraining(settings).run(say)

try:
    asyncio.run(main())
except asyncio.CancelledError:
    say("cancelled")
"""
"""Runs a training whose checkpoint cannot be converted before a file exists. Arguments: the settings of the
training, a file for the lines for the user, and the file to wait for."""


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PrimeTraining:
    """A training of three steps; each halves the weights of a tiny model."""
    variables = checkout(tmp_path / "checkout", LAUNCHER.read_text(), forked=True)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CALLED", str(tmp_path / "called"))
    monkeypatch.setenv("HANGING", str(tmp_path / "hanging"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    policy.build(tmp_path / "model", ["abc"], hidden=16, layers=1, heads=2, kv_heads=1, vocab=280)
    merged = overrides.read_files(["@configs/agent0/executor_prime_rl.toml"])
    own = {
        "output_dir": str(tmp_path / "round"),
        "run": {"name": "executor"},
        "model": {"name": str(tmp_path / "model")},
        "max_steps": 3,
    }
    overrides.put(merged, own, "test")
    merged.data["orchestrator"]["train"]["source"][0]["env"]["taskset"]["tasks"] = [
        "game:sokoban4x5"
    ]
    return PrimeTraining(merged.data)


def calls(tmp_path: Path) -> list[list[str]]:
    """The flags of all calls of the launcher."""
    lines = (tmp_path / "called").read_text().splitlines()
    return [json.loads(line)["argv"][2:] for line in lines]


def weight(folder: Path) -> torch.Tensor:
    return policy.load(folder).model.get_input_embeddings().weight


def say(text: str) -> None:
    print(text)


async def test_the_trained_model_is_handed_on(training: PrimeTraining, tmp_path: Path) -> None:
    assert training.result() is None
    done = await training.run(say)
    assert done == training.result() == tmp_path / "round" / "executor" / "merged"
    assert torch.equal(weight(done), weight(tmp_path / "model") / 8)
    assert await training.run(say) == done
    assert calls(tmp_path) == [[]]
    assert json.loads(training.run_file.read_text())["max_steps"] == 3


async def test_an_error_of_prime_rl_is_ours(
    training: PrimeTraining, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CODE", "3")
    with pytest.raises(InfrastructureError, match=r"ended with exit code 3$"):
        await training.run(say)
    monkeypatch.delenv("CODE")
    # All steps were done, so nothing is trained again.
    assert torch.equal(weight(await training.run(say)), weight(tmp_path / "model") / 8)
    assert calls(tmp_path) == [[]]


async def test_a_launcher_that_writes_no_checkpoint_is_an_error(
    training: PrimeTraining, tmp_path: Path
) -> None:
    (tmp_path / "checkout/prime_rl/entrypoints/rl.py").write_text("")
    with pytest.raises(InfrastructureError, match="without a checkpoint of step 3"):
        await training.run(say)


async def test_ctrl_c_ends_prime_rl_and_the_training_continues(
    training: PrimeTraining, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HANGS", "2")
    task = asyncio.create_task(training.run(say))
    await until(lambda: task.done() or is_hanging(tmp_path))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not is_alive(pid(tmp_path))
    await until(lambda: not is_alive(int((tmp_path / "hanging").read_text())))
    monkeypatch.delenv("HANGS")
    # A checkpoint that was being written when prime-rl ended is not used, but deleted.
    (tmp_path / "round/executor/checkpoints/step_3/trainer").mkdir(parents=True)
    assert torch.equal(weight(await training.run(say)), weight(tmp_path / "model") / 8)
    assert calls(tmp_path) == [[], ["--resume.step", "2"]]


async def test_without_a_complete_checkpoint_it_begins_anew(
    training: PrimeTraining, tmp_path: Path
) -> None:
    part = tmp_path / "round/executor/checkpoints/step_1/orchestrator"
    part.mkdir(parents=True)
    (part / "progress.pt").touch()
    await training.run(say)
    assert calls(tmp_path) == [["--clean"]]


async def test_a_killed_process_takes_prime_rl_with_it(
    training: PrimeTraining, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Otherwise the next process would train in the same folder, on the same GPUs."""
    monkeypatch.setenv("HANGS", "1")
    monkeypatch.setenv("SLOW", str(tmp_path / "may end"))
    body = (
        "import asyncio, json, sys; from air.train.prime_rl.training import PrimeTraining\n"
        "asyncio.run(PrimeTraining(json.loads(sys.argv[1])).run(print))"
    )
    argv = ["python", "-c", body, json.dumps(dict(training.settings))]
    with of_this_run().spawn(argv, cwd=tmp_path, env=os.environ, streams=[1, 2]) as process:
        await until(lambda: process.poll() is not None or is_hanging(tmp_path))
        process.send_signal(signal.SIGKILL)
        process.wait(120)
    with pytest.raises(UsageError, match="still runs in this folder"):
        await training.run(say)
    (tmp_path / "may end").touch()
    os.kill(int((tmp_path / "hanging").read_text()), signal.SIGKILL)
    await until(lambda: not is_alive(pid(tmp_path)))
    monkeypatch.delenv("HANGS")
    # The trainer had finished its part of this checkpoint, the orchestrator not.
    part = tmp_path / "round/executor/checkpoints/step_2/trainer"
    part.mkdir(parents=True)
    (part / ".metadata").touch()
    await training.run(say)
    assert calls(tmp_path) == [[], ["--resume.step", "1"]]


async def test_a_second_ctrl_c_kills_at_once(
    training: PrimeTraining, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HANGS", "1")
    monkeypatch.setenv("SLOW", str(tmp_path / "never"))
    task = asyncio.create_task(training.run(say))
    await until(lambda: task.done() or is_hanging(tmp_path))
    task.cancel()
    await until((tmp_path / "called.sigterm").exists)  # now the launcher waits
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not is_alive(pid(tmp_path))
    await until(lambda: not is_alive(int((tmp_path / "hanging").read_text())))


@contextmanager
def no_free_thread() -> Iterator[None]:
    """Occupies the only thread of the running event loop, so that work for a thread waits until the end of
    the block."""
    free = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(threads)
        loop.run_in_executor(None, free.wait, 300)
        try:
            yield
        finally:
            free.set()


def is_locked(training: PrimeTraining) -> bool:
    lock = os.open(training.folder.with_name(f".{training.folder.name}.lock"), os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


async def test_the_lock_outlasts_the_conversion_of_the_checkpoint(training: PrimeTraining) -> None:
    """Otherwise, another process could begin the same training meanwhile."""
    said: list[str] = []
    task = asyncio.create_task(training.run(said.append))
    with no_free_thread():
        await until(lambda: task.done() or said[-1:] == [CONVERTS])
        for _ in range(3):
            said.clear()
            task.cancel()
            await until(lambda: task.done() or said == [STOPS])
            assert not task.done()
            assert is_locked(training)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not is_locked(training)
    assert training.result() is not None


async def test_further_signals_wait_for_the_conversion_too(
    training: PrimeTraining, tmp_path: Path
) -> None:
    said, may_end = tmp_path / "said", tmp_path / "may end"
    said.touch()
    argv = ["python", "-c", WITHOUT_A_THREAD, json.dumps(dict(training.settings))]
    argv += [str(said), str(may_end)]
    with of_this_run().spawn(argv, cwd=tmp_path, env=os.environ, streams=[1, 2]) as process:

        async def until_said(line: str, count: int) -> None:
            def holds() -> bool:
                return said.read_text().splitlines().count(line) == count

            await until(lambda: process.poll() is not None or holds())
            assert holds()

        await until_said(CONVERTS, 1)
        for count, number in enumerate((signal.SIGINT, signal.SIGINT, signal.SIGTERM), start=1):
            process.send_signal(number)
            await until_said(STOPS, count)
            assert is_locked(training)
        may_end.touch()
        process.wait(120)
    assert said.read_text().splitlines()[-1] == "cancelled"
    assert training.result() is not None


def test_gpus_and_prime_rl_are_checked_before(
    training: PrimeTraining, monkeypatch: pytest.MonkeyPatch
) -> None:
    training.check()
    assert [gpu.index for gpu in training.placement().unused] == []
    monkeypatch.setenv("AIR_GPU_INVENTORY", "none")
    with pytest.raises(MissingError, match="no NVIDIA GPU"):
        training.check()
    monkeypatch.setenv("AIR_PRIME_RL", sys.executable)
    with pytest.raises(MissingError, match="has no prime_rl"):
        training.check()
    monkeypatch.delenv("AIR_PRIME_RL")
    with pytest.raises(MissingError, match="prime-rl is not installed here"):
        training.check()


def pid(tmp_path: Path) -> int:
    value: Any = json.loads((tmp_path / "called").read_text().splitlines()[-1])["pid"]
    return int(value)


def is_hanging(tmp_path: Path) -> bool:
    file = tmp_path / "hanging"
    return file.is_file() and bool(file.read_text())


def is_alive(number: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
