"""A run of `sft`: every key that it accepts changes something, and an interrupted run goes on exactly."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from air.cli.main import main
from air.errors import MissingError, UsageError
from air.train.config import overrides
from air.train.config.embedded_config import usable_cores
from air.train.config.sft_config import SFTRunConfig
from air.train.evaluation.settings import find_checkpoint
from air.train.loop import run_folder, sft_run
from air.train.model import policy
from air.train.prime_rl.schema.write_schema import walk
from air.view.index.run_discovery import discover
from air.view.index.run_index import RunIndex
from air.view.render import overview
from tests.unit.train.conftest import conversation

TIMES = ("time/step", "tokens_per_second", "peak_memory_mb")
SGD = ["--optim.type", "sgd", "--optim.lr", "1e-2"]
LINEAR = ["--scheduler.type", "linear", "--scheduler.warmup-steps", "1", "--scheduler.decay-steps"]
VAL = ["--val.data.name", "{held_out}", "--val.data.seq-len", "120", "--val.interval", "1"]
LORA = ["--model.lora.rank", "4"]
CASES: dict[str, tuple[list[str], list[str]]] = {
    "max_steps": ([], ["--max-steps", "1"]),
    "output_dir": ([], ["--output-dir", "{other}"]),
    "run.name": ([], ["--run.name", "another"]),
    "model.name": ([], ["--model.name", "{model}"]),
    "renderer": ([], ["--renderer.name", "qwen3", "--renderer.enable-thinking"]),
    "data.name": ([], ["--data.name", "{held_out}"]),
    "data.batch_size": ([], ["--data.batch-size", "1"]),
    "data.seq_len": ([], ["--data.seq-len", "90"]),
    "data.shuffle": ([], ["--no-data.shuffle"]),
    "data.seed": ([], ["--data.seed", "5"]),
    "val.data.name": (VAL, ["--val.data.name", "{demos}"]),
    "val.data.seq_len": (VAL, ["--val.data.seq-len", "50"]),
    "val.interval": (VAL, ["--val.interval", "2"]),
    "val.eval_on_start": (VAL, ["--val.eval-on-start"]),
    "optim.type": ([], ["--optim.type", "sgd"]),
    "optim.lr": ([], ["--optim.lr", "2e-3"]),
    "optim.weight_decay": ([], ["--optim.weight-decay", "0.5"]),
    "optim.max_norm": (SGD, ["--optim.max-norm", "1e-2"]),
    "optim.momentum": (SGD, ["--optim.momentum", "0.0"]),
    "optim.nesterov": (SGD, ["--no-optim.nesterov"]),
    "optim.betas1": ([], ["--optim.betas1", "0.5"]),
    "optim.betas2": ([], ["--optim.betas2", "0.5"]),
    "scheduler.type": ([], ["--scheduler.type", "cosine", "--scheduler.warmup-steps", "1"]),
    "scheduler.warmup_steps": ([*LINEAR, "0"], ["--scheduler.warmup-steps", "2"]),
    "scheduler.decay_steps": (["--max-steps", "3", *LINEAR, "0"], ["--scheduler.decay-steps", "2"]),
    "scheduler.min_lr": ([*LINEAR, "0"], ["--scheduler.min-lr", "5e-4"]),
    "ckpt.interval": ([], ["--ckpt.interval", "1"]),
    "ckpt.keep_last": (["--ckpt.interval", "1"], ["--ckpt.keep-last", "1"]),
    "embedded.micro_batch_tokens": ([], ["--embedded.micro-batch-tokens", "64"]),
    "embedded.dtype": ([], ["--embedded.dtype", "bfloat16"]),
    "embedded.attention": ([], ["--embedded.attention", "eager"]),
    "model.lora.rank": (LORA, ["--model.lora.rank", "2"]),
    "model.lora.alpha": (LORA, ["--model.lora.alpha", "4"]),
    "model.lora.target_modules": (LORA, ["--model.lora.target-modules", '["q_proj"]']),
}
"""By key: flags of a run, and further flags that set the key to another value."""
ONE_VALUE = {"data.type", "val.data.type", "model.lora.dropout"}
ELSEWHERE = {
    "resume.step",  # test_an_interrupted_run_goes_on_exactly
    "embedded.threads",  # test_the_same_settings_give_the_same_run
    "embedded.device",  # test_the_device_is_the_one_that_is_asked_for
    "embedded.gradient_checkpointing",  # test_layers_are_computed_again_in_the_backward_pass
}

Start = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def places(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("sft")
    for name, numbers in (("demos", range(5)), ("held_out", range(20, 23))):
        lines = [json.dumps({"messages": conversation(n)}) + "\n" for n in numbers]
        (root / f"{name}.jsonl").write_text("".join(lines))
    texts = [message["content"] for message in conversation(0)]
    model = policy.build(root / "model", texts, hidden=32, layers=1, vocab=350, max_length=256)
    return {
        "demos": root / "demos.jsonl",
        "held_out": root / "held_out.jsonl",
        "model": model,
        "base": folder,
    }


def config_of(places: dict[str, Path], out: Path, *flags: str) -> SFTRunConfig:
    names = {name: str(path) for name, path in places.items()} | {"other": str(out / "other")}
    args = ["--model.name", "{base}", "--data.name", "{demos}", "--output-dir", str(out)]
    args += ["--max-steps", "2", "--data.batch-size", "2", "--data.seq-len", "120"]
    args += ["--optim.lr", "1e-3", "--embedded.threads", "1"]
    args = [arg.format_map(names) for arg in (*args, *flags)]
    return overrides.build(SFTRunConfig, overrides.parse(args, SFTRunConfig))


def outcome(places: dict[str, Path], out: Path, flags: list[str]) -> dict[str, Any]:
    """What a run leaves: metrics without times, the weights, the files, and torch's threads meanwhile."""
    config = config_of(places, out, *flags)
    rows: list[dict[str, Any]] = []
    threads: set[int] = set()

    def on_row(row: dict[str, Any]) -> None:
        rows.append(row)
        threads.add(torch.get_num_threads())

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        sft_run.run(config, on_row, lambda _: None)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    return {
        "rows": [{k: v for k, v in row.items() if k not in TIMES} for row in rows],
        "weights": [path.read_bytes() for path in config.folder.glob("*model.safetensors")],
        "files": sorted(str(path.relative_to(out)) for path in out.rglob("*")),
        "threads": threads,
    }


@pytest.fixture(scope="session")
def before(
    places: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[list[str]], dict[str, Any]]:
    """The outcome of a run with these flags, each computed once."""
    kept: dict[tuple[str, ...], dict[str, Any]] = {}

    def of(flags: list[str]) -> dict[str, Any]:
        if tuple(flags) not in kept:
            kept[tuple(flags)] = outcome(places, tmp_path_factory.mktemp("before"), flags)
        return kept[tuple(flags)]

    return of


def test_each_key_is_in_the_table() -> None:
    keys = {key for key, types in walk(SFTRunConfig).items() if set(types) - {"table", "none"}}
    tested = {key.partition(".")[0] if key.startswith("renderer") else key for key in keys}
    assert tested == set(CASES) | ONE_VALUE | ELSEWHERE


@pytest.mark.slow
@pytest.mark.parametrize("key", list(CASES))
def test_a_key_changes_something(
    key: str,
    places: dict[str, Path],
    before: Callable[[list[str]], dict[str, Any]],
    tmp_path: Path,
) -> None:
    base, change = CASES[key]
    assert outcome(places, tmp_path, [*base, *change]) != before(base)


def test_the_same_settings_give_the_same_run(
    places: dict[str, Path], before: Callable[[list[str]], dict[str, Any]], tmp_path: Path
) -> None:
    """Without this the tests of single keys would show nothing."""
    assert outcome(places, tmp_path, []) == before([])
    assert before([])["threads"] == {1}


def test_all_cores_train_unless_the_file_says_otherwise(
    places: dict[str, Path], tmp_path: Path
) -> None:
    threads: list[int] = []
    config = config_of(places, tmp_path)
    free = config.model_copy(
        update={"embedded": config.embedded.model_copy(update={"threads": None}), "max_steps": 1}
    )
    before = torch.get_num_threads()
    sft_run.run(free, lambda _: threads.append(torch.get_num_threads()), lambda _: None)
    assert threads == [usable_cores()]
    assert torch.get_num_threads() == before


def test_the_device_is_the_one_that_is_asked_for(places: dict[str, Path], tmp_path: Path) -> None:
    """No machine has the GPU 99."""
    config = config_of(places, tmp_path, "--embedded.device", "cuda:99")
    with pytest.raises(UsageError, match=r"embedded\.device.*cuda:99|cuda:99.*embedded\.device"):
        sft_run.run(config, lambda _: None, lambda _: None)


def test_layers_are_computed_again_in_the_backward_pass(
    places: dict[str, Path], tmp_path: Path
) -> None:
    """The forward pass keeps less, and the losses are the same."""
    kept: list[int] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[-1] += tensor.numel()
        return tensor

    outcomes = []
    for flags in ([], ["--embedded.gradient-checkpointing"]):
        kept.append(0)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            outcomes.append(outcome(places, tmp_path / str(len(kept)), flags))
    for plain, again in zip(*(one["rows"] for one in outcomes), strict=True):
        assert again["loss/mean"] == pytest.approx(plain["loss/mean"], rel=1e-5)
    assert kept[1] < 0.7 * kept[0]


def test_other_keys_are_refused(places: dict[str, Path], tmp_path: Path) -> None:
    for flag in ("--val.data.batch-size", "--val.data.seed", "--data.micro-batch-size", "--pack"):
        with pytest.raises(UsageError, match=flag.removeprefix("--").replace("-", "[-_]")):
            config_of(places, tmp_path, flag, "2")


class Interrupt:
    """Receives rows; sends this process a signal at a step, as Ctrl-C does."""

    def __init__(self, step: int, number: int = signal.SIGINT) -> None:
        self.step, self.number = step, number

    def __call__(self, row: dict[str, Any]) -> None:
        if row["step"] == self.step:
            os.kill(os.getpid(), self.number)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(row) for row in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in TIMES} for row in rows]


@pytest.mark.slow
def test_an_interrupted_run_goes_on_exactly(places: dict[str, Path], tmp_path: Path) -> None:
    """Stopped after step 3 of 4, then resumed from there, or from the checkpoint of step 2: the metrics and
    the weights are those of a run that was never stopped."""
    length = ["--max-steps", "4", *VAL, "--val.eval-on-start", "--ckpt.interval", "2"]
    whole = config_of(places, tmp_path, *length, "--run.name", "whole")
    sft_run.run(whole, lambda _: None, lambda _: None)
    for name, number, resume in (
        ("last", signal.SIGINT, ["--resume"]),
        ("earlier", signal.SIGTERM, ["--resume.step", "2"]),
    ):
        flags = [*length, "--run.name", name]
        config = config_of(places, tmp_path, *flags)
        with pytest.raises(KeyboardInterrupt):
            sft_run.run(config, Interrupt(3, number), lambda _: None)
        assert run_folder.steps(config.folder / "checkpoints") == [2, 3]
        with pytest.raises(UsageError, match=r"stopped here after step 3.*--resume"):
            sft_run.run(config, lambda _: None, lambda _: None)
        assert f"{config.folder / 'sft.json'} --resume" in sft_run.how_to_resume(config)
        with pytest.raises(MissingError, match=r"there: 2, 3"):
            sft_run.start_from(config_of(places, tmp_path, *flags, "--resume.step", "1"))
        said: list[str] = []
        args = [f"@{config.folder / 'sft.json'}", *resume]
        again = overrides.build(SFTRunConfig, overrides.parse(args, SFTRunConfig))
        sft_run.run(again, lambda _: None, said.append)
        assert rows_of(config.folder) == rows_of(whole.folder)
        weights = [one / "model.safetensors" for one in (config.folder, whole.folder)]
        assert weights[0].read_bytes() == weights[1].read_bytes()
    branch = config.folder / "branches" / "after_step_2"
    place, *others = said
    assert place.startswith("training: on the CPU (")
    assert others == ["resuming after step 2", f"what was trained after step 2 is now in {branch}"]
    assert [row["step"] for row in rows_of(branch)] == [3]
    assert json.loads((branch / "sft.json").read_text())["run"]["name"] == "after_step_2"
    with pytest.raises(UsageError, match="has a policy already"):
        sft_run.start_from(again)


@pytest.mark.slow
def test_an_interrupted_adapter_of_a_bfloat16_model_goes_on_exactly(
    places: dict[str, Path], tmp_path: Path
) -> None:
    flags = ["--max-steps", "4", *LORA, "--embedded.dtype", "bfloat16"]
    whole = config_of(places, tmp_path, *flags, "--run.name", "whole")
    sft_run.run(whole, lambda _: None, lambda _: None)
    config = config_of(places, tmp_path, *flags, "--run.name", "stopped")
    with pytest.raises(KeyboardInterrupt):
        sft_run.run(config, Interrupt(3), lambda _: None)
    again = config_of(places, tmp_path, *flags, "--run.name", "stopped", "--resume")
    sft_run.run(again, lambda _: None, lambda _: None)
    assert rows_of(config.folder) == rows_of(whole.folder)
    weights = [one / "adapter_model.safetensors" for one in (config.folder, whole.folder)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_settings_are_written_and_the_viewer_shows_them(
    places: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_of(places, tmp_path, "--run.name", "warm", "--ckpt.interval", "1")
    sft_run.run(config, lambda _: None, lambda _: None)
    written = json.loads((config.folder / "sft.json").read_text())
    assert SFTRunConfig.model_validate(written) == config
    (run,) = discover([config.folder])
    index = RunIndex(config.folder)
    index.file.refresh()
    assert overview.kind(run, index.metrics()) == "sft"
    assert overview.steps(run, index.metrics()) == "2/2"
    assert overview.model(run, index.metrics(), []) == places["base"].name
    assert main(["show", str(config.folder)]) == 0
    assert "small  sft" in capsys.readouterr().out
    # `air eval` plays the trained model, not one of its checkpoints.
    assert find_checkpoint(str(config.folder)) is None
    assert policy.load(config.folder).parameters() == policy.load(places["base"]).parameters()
