"""A whole run with LoRA: checkpoints are adapters, from which it goes on, is played and is merged."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import load_file

from air.train.model import policy
from tests.e2e.commands.test_commands import command
from tests.e2e.train.test_further_models import run
from tests.e2e.train.test_resume import rows

LORA = ("--trainer.model.lora.rank", "4", "--trainer.model.lora.alpha", "8")
LOADING = ("--embedded.device", "cpu", "--embedded.dtype", "bfloat16")
ADAPTER = "adapter_model.safetensors"


def test_a_run_with_lora_goes_on_is_played_and_merged(small: Path, tmp_path: Path) -> None:
    folder = run(tmp_path, small, *LORA, *LOADING, "--embedded.attention", "eager")
    further = ["--resume", "--max-steps", "2"]
    resumed = command("rl", f"@{folder / 'config.json'}", *further, cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert [row["step"] for row in rows(folder)] == [1, 2]
    first, second = (folder / "checkpoints" / f"step_{number}" for number in (1, 2))
    assert not (second / "model.safetensors").exists()
    settings = json.loads((second / "adapter_config.json").read_text())
    assert (settings["r"], settings["base_model_name_or_path"]) == (4, str(small))
    before, after = load_file(first / ADAPTER), load_file(second / ADAPTER)
    assert any(not before[name].equal(after[name]) for name in after)

    played = tmp_path / "played"
    flags = ["--episodes", "1", "--no-start", "--record-dir", played]
    evaluated = command("air", "eval", folder, *flags, cwd=tmp_path)
    assert evaluated.returncode == 0, evaluated.stdout + evaluated.stderr
    assert "model: on the CPU (as asked), bfloat16, eager attention" in evaluated.stdout
    assert json.loads((played / "step_2" / "evaluation.json").read_text())["dtype"] == "bfloat16"

    whole = tmp_path / "whole"
    merged = command("air", "merge", folder, whole, cwd=tmp_path)
    assert merged.returncode == 0, merged.stdout + merged.stderr
    model, base = policy.load(whole), policy.load(small)
    assert not model.has_adapter
    assert model.parameters() == base.parameters()
    weights = base.model.state_dict()
    assert any(not weights[name].equal(new) for name, new in model.model.state_dict().items())
