"""The hand-over. What stands in for prime-rl's launcher here is a small program of the same name."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

import air
from air.cli.main import main
from air.env.failure_breaker import FILE_ENV
from air.errors import MissingError
from air.train.config import overrides
from air.train.prime_rl import launch
from air.train.prime_rl.launcher_process import supervise
from tests.fork_server import of_this_run
from tests.unit.train.prime_rl.checkout import checkout

DEBUG = "configs/mlgym/rl_debug.toml"
STANDIN = """
import json, os, sys
names = ("CUDA_VISIBLE_DEVICES", "PATH", "AIR_BREAKER_FILE")
with open(os.environ["CALLED"], "w") as file:
    json.dump({"argv": sys.argv[1:], **{name: os.environ.get(name) for name in names}}, file)
sys.exit(int(os.environ.get("CODE", "0")))
"""


@pytest.fixture
def called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with eight GPUs and a launcher that writes down how it was called."""
    for name, value in checkout(tmp_path / "checkout", STANDIN).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CALLED", str(tmp_path / "called.json"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "called.json"


def test_the_unchanged_file_is_handed_over(
    called: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CODE", "7")
    assert main(["rl", f"@{DEBUG}", "--max-steps", "3"]) == 7
    got = json.loads(called.read_text())
    assert got["argv"][0] == "@"
    assert Path(got["argv"][1]).read_text() == (Path(air.__file__).parents[1] / DEBUG).read_text()
    assert got["argv"][2:] == ["--max-steps", "3"]
    assert got["CUDA_VISIBLE_DEVICES"] == "0,2,3,4,5,6"
    assert got["PATH"].startswith(str(called.parent / "checkout/.venv/bin"))
    assert Path(got["AIR_BREAKER_FILE"]).parent == called.parent / "outputs"
    assert list((called.parent / "outputs").iterdir()) == []
    plan = capsys.readouterr().err
    for line in ("inference  0", "trainer    2, 3, 4, 5, 6", "boxes      7", "left alone 1"):
        assert line in plan


def test_a_dry_run_is_theirs_too(called: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rl", "@", DEBUG, "--dry-run", "--engine", "prime-rl"]) == 0
    assert json.loads(called.read_text())["argv"][-1] == "--dry-run"
    assert "steps old" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--gpus", "7,2,3,4,5,6"], ["inference_gpus", "would be 7"]),
        (["--orchestrator.train.source.0.env.gpus", '["3"]'], ["GPU 3", "boxes", "left alone 1, 7"]),
        (["--deployment.num-train-gpus", "6"], ["trainer 6", "sees 6"]),
        (["--orchestrator.concurrency.max-inflight", "1024"], ["max_inflight", "dropped"]),
        (["--orchestrator.train.source.0.env.taskset.tasks", '["cifar10"]',
          "--orchestrator.train.source.0.env.gpus", "[]"], ["cifar10 takes 1 GPUs", "have 0"]),
        (["--trainer.optim.rate", "1"], ["`trainer.optim.rate`", "prime-rl 0.8"]),
        (["--orchestrator.train.source.0.env.colour", "red"], ["env.colour"]),
        (["--seq-len", "512"], ["1024", "512", "max_completion_tokens"]),
        (["--seq-len", "4096"], ["8192", "4096", "max_model_len"]),
    ],
)  # fmt: skip
def test_what_makes_no_sense_starts_nothing(
    args: list[str], words: list[str], called: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rl", "@", DEBUG, *args]) == 2
    assert not called.exists()
    error = capsys.readouterr().err
    for word in words:
        assert word in error
    assert len(error.splitlines()) == 1


def test_a_shared_gpu_needs_weights_by_files(
    called: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = ["rl", "@", "configs/mlgym/rl_1gpu.toml"]
    assert main(file) == 0
    assert json.loads(called.read_text())["CUDA_VISIBLE_DEVICES"] == "0,0"
    capsys.readouterr()
    assert main([*file, "--weight-broadcast.type", "nccl"]) == 2
    assert "filesystem" in capsys.readouterr().err


def test_who_runs_a_file(called: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from air.train.choose_engine import choose

    theirs, ours = (
        overrides.read_files(["@", "configs/" + name])
        for name in ("mlgym/rl.toml", "quickstart.toml")
    )
    overlay = overrides.read_files(
        ["@", "configs/mlgym/rl.toml", "@", "configs/embedded/shuffled.toml"]
    )
    assert choose("auto", theirs, dry_run=False) == "prime-rl"
    assert choose("auto", ours, dry_run=False) == "embedded"
    assert choose("auto", overlay, dry_run=False) == "embedded"
    assert choose("embedded", theirs, dry_run=False) == "embedded"
    assert choose("prime-rl", ours, dry_run=False) == "prime-rl"
    monkeypatch.setenv("AIR_GPU_INVENTORY", "none")
    assert choose("auto", theirs, dry_run=True) == "prime-rl"
    with pytest.raises(MissingError, match="no NVIDIA GPU"):
        choose("auto", theirs, dry_run=False)
    monkeypatch.delenv("AIR_PRIME_RL")
    with pytest.raises(MissingError, match="not installed"):
        choose("auto", theirs, dry_run=False)


def test_prime_rl_without_gpus_is_refused_at_the_start(
    called: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AIR_GPU_INVENTORY", "none")
    assert main(["rl", "@", DEBUG, "--engine", "prime-rl"]) == 2
    assert "no NVIDIA GPU" in capsys.readouterr().err
    assert not called.exists()


def test_slurm_needs_no_gpu_here_and_a_template_of_ours(
    called: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AIR_GPU_INVENTORY", "none")
    file = ["rl", "@", str(Path(air.__file__).parents[1] / "configs/mlgym/rl_multinode.toml")]
    assert main(file) == 2
    assert "working directory" in capsys.readouterr().err
    monkeypatch.chdir(Path(air.__file__).parents[1])
    assert main([*file, "--slurm.template-path", "None"]) == 2
    assert "takes air out" in capsys.readouterr().err
    assert main([*file, "--output-dir", str(called.parent / "outputs")]) == 0
    assert json.loads(called.read_text())["CUDA_VISIBLE_DEVICES"] is None


def test_an_interpreter_that_lacks_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIR_PRIME_RL", sys.executable)
    with pytest.raises(MissingError, match="has no prime_rl"):
        launch.interpreter()
    monkeypatch.setenv("AIR_PRIME_RL", str(tmp_path))
    with pytest.raises(MissingError, match="no interpreter"):
        launch.interpreter()
    monkeypatch.delenv("AIR_PRIME_RL")
    assert launch.interpreter() is None


def run(body: str, breaker: Path, **settings: float) -> int:
    env = {**os.environ, FILE_ENV: str(breaker)}
    return supervise([sys.executable, "-c", body], env, breaker, **settings)


def test_exit_codes_are_passed_on(tmp_path: Path) -> None:
    breaker = tmp_path / "breaker"
    assert run("raise SystemExit(5)", breaker) == 5
    breaker.write_text('{"failures": 4, "opened": ""}')
    assert run("import time; time.sleep(1)", breaker) == 0
    assert run("import os; os.kill(os.getpid(), 9)", breaker) == 128 + 9


def test_the_breaker_ends_the_run_and_says_why(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    breaker = tmp_path / "breaker"
    fails = "from air.env.failure_breaker import Breaker; Breaker.of_run(1).failed('no box starts', 't')"
    body = f"import time; {fails}; time.sleep(600)"
    began = time.monotonic()
    assert run(body, breaker) == 1
    assert time.monotonic() - began < 300
    said = capfd.readouterr().err
    assert "error: 1 episodes in a row failed" in said
    assert "no box starts" in said


def test_what_does_not_end_is_killed_with_all_it_started(tmp_path: Path) -> None:
    breaker, pid = tmp_path / "breaker", tmp_path / "pid"
    breaker.write_text('{"failures": 5, "opened": "stop"}')
    body = (
        "import signal, subprocess, time; signal.signal(15, signal.SIG_IGN);"
        f"open({str(pid)!r}, 'w').write(str(subprocess.Popen(['sleep', '600']).pid));"
        "time.sleep(600)"
    )
    assert run(body, breaker, grace=1.5) == 1
    if pid.exists():
        assert not Path(f"/proc/{pid.read_text()}/exe").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_passed_on(number: signal.Signals, tmp_path: Path) -> None:
    told = tmp_path / "told"
    child = (
        "import signal, sys, time\n"
        f"def end(number, frame): open({str(told)!r}, 'w').write(str(number)); sys.exit(1)\n"
        "signal.signal(2, end); signal.signal(15, end)\n"
        "print('ready', flush=True); time.sleep(600)"
    )
    parent = (
        "import os, sys, pathlib; from air.train.prime_rl.launcher_process import supervise\n"
        f"sys.exit(supervise([sys.executable, '-c', {child!r}], os.environ, pathlib.Path('none')))"
    )
    ours, theirs = os.pipe()
    argv = ["python", "-c", parent]
    with (
        os.fdopen(ours) as lines,
        of_this_run().spawn(argv, cwd=tmp_path, env=os.environ, streams=[theirs, 2]) as process,
    ):
        os.close(theirs)
        assert lines.readline() == "ready\n"
        process.send_signal(number)
        assert process.wait(120) == 130
    assert told.read_text() == str(int(number))
