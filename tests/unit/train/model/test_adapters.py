from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from air.errors import MissingError, UsageError
from air.train.config.model_options import AdamWConfig, LoRAConfig, SFTConfig, SFTDataConfig
from air.train.loop import run_folder
from air.train.model import adapters, checkpoint, policy
from air.train.model.policy import Policy
from air.train.model.sft import train_sft
from air.train.serving.sampler import SamplingParams
from tests.unit.train.conftest import conversation, generate

LORA = LoRAConfig(rank=4, alpha=8)


def predictions(model: Policy) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model.model(input_ids=torch.arange(5, 25)[None]).logits
    return logits


def trained(folder: Path, steps: int = 5, **settings: object) -> Policy:
    learner = policy.load(folder, lora=LORA, **settings)  # type: ignore[arg-type]
    config = SFTConfig(
        max_steps=steps, data=SFTDataConfig(batch_size=4, seq_len=100), optim=AdamWConfig(lr=1e-2)
    )
    train_sft(learner, [conversation(n) for n in range(20)], config)
    return learner


def test_weights_lie_at_aligned_addresses_wherever_they_come_from(
    folder: Path, tmp_path: Path
) -> None:
    """Rounding depends on addresses, so a resumed run needs those of a new one."""
    fresh = policy.load(folder, lora=LORA)
    fresh.save(tmp_path / "adapter")
    for one in (fresh, policy.load(tmp_path / "adapter", lora=LORA), policy.load(folder)):
        assert {weights.data_ptr() % 64 for weights in one.model.parameters()} == {0}


def test_a_new_adapter_changes_nothing_and_training_changes_only_it(
    folder: Path, small: Policy
) -> None:
    fresh = policy.load(folder, lora=LORA)
    assert predictions(fresh).equal(predictions(small))
    learner = trained(folder)
    assert (predictions(learner) - predictions(small)).abs().max() > 0.1
    with learner.base_model():
        assert predictions(learner).equal(predictions(small))
    assert (predictions(learner) - predictions(small)).abs().max() > 0.1
    # Rank 4 on the seven linear layers of each of two layers: 4 x (rows + columns).
    config = small.model.config
    hidden, inner = config.hidden_size, config.intermediate_size
    q, kv = 4 * config.head_dim, 2 * config.head_dim
    sides = 2 * (hidden + q) + 2 * (hidden + kv) + 3 * (hidden + inner)
    count = sum(p.numel() for p in learner.model.parameters() if p.requires_grad)
    assert count == config.num_hidden_layers * LORA.rank * sides


def test_the_sampler_uses_the_adapter(folder: Path) -> None:
    learner = trained(folder)
    [reply] = generate(learner, [[5, 6, 7]], SamplingParams(max_tokens=8, seed=0))
    ids = [5, 6, 7, *reply.token_ids]
    with torch.no_grad():
        logprobs = learner.model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
    expected = [logprobs[n + 2, token].item() for n, token in enumerate(reply.token_ids)]
    assert reply.logprobs == pytest.approx(expected, abs=1e-5)


def test_a_saved_adapter_goes_on_and_merges(folder: Path, tmp_path: Path) -> None:
    learner = trained(folder)
    learner.save(tmp_path / "adapter")
    names = {path.name for path in (tmp_path / "adapter").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= names
    assert "model.safetensors" not in names
    saved = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (saved["r"], saved["base_model_name_or_path"]) == (4, str(folder))
    checkpoint.save(tmp_path / "checkpoints", 3, learner)
    assert run_folder.steps(tmp_path / "checkpoints") == [3]
    further = policy.load(tmp_path / "adapter", lora=LORA)
    assert predictions(further).equal(predictions(learner))
    assert further.eos_ids == learner.eos_ids
    trainable = [n for n, p in further.model.named_parameters() if p.requires_grad]
    assert trainable == [n for n, p in learner.model.named_parameters() if p.requires_grad]
    played = policy.load(tmp_path / "adapter")
    assert predictions(played).equal(predictions(learner))
    assert not any(p.requires_grad for p in played.model.parameters())
    policy.merged(tmp_path / "adapter").save(tmp_path / "whole")
    merged = policy.load(tmp_path / "whole")
    assert not merged.has_adapter
    assert torch.allclose(predictions(merged), predictions(learner), atol=1e-4)


def test_the_adapter_of_a_bfloat16_model_is_float32(folder: Path) -> None:
    learner = trained(folder, steps=1, dtype="bfloat16")
    kinds = {(p.dtype, p.requires_grad) for p in learner.model.parameters()}
    assert kinds == {(torch.bfloat16, False), (torch.float32, True)}


def test_a_saved_adapter_of_a_bfloat16_model_is_not_rounded(folder: Path, tmp_path: Path) -> None:
    learner = trained(folder, dtype="bfloat16")
    learner.save(tmp_path / "adapter")
    again = policy.load(tmp_path / "adapter", dtype="bfloat16", lora=LORA)
    before, after = (list(adapters.parameters(one.model)) for one in (learner, again))
    assert any(not weights.equal(weights.bfloat16().float()) for weights in before)
    assert len(before) == len(after) > 0
    assert all(weights.equal(other) for weights, other in zip(before, after, strict=True))
    assert all(weights.requires_grad for weights in after)


def test_settings_that_do_not_fit_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"lora\.target_modules: no layer is named c_attn — .*q_proj"
    ):
        policy.load(folder, lora=LoRAConfig(target_modules=["c_attn"]))
    typo = LoRAConfig(target_modules=["q_proj", "vproj"])
    with pytest.raises(UsageError, match=r"no layer is named vproj — .*v_proj"):
        policy.load(folder, lora=typo)
    policy.load(folder, lora=LORA).save(tmp_path / "adapter")
    fewer = LORA.model_copy(update={"target_modules": ["q_proj"]})
    with pytest.raises(UsageError, match=r"lora\.target_modules: q_proj does not fit .*v_proj"):
        policy.load(tmp_path / "adapter", lora=fewer)
    policy.load(folder, lora=fewer).save(tmp_path / "fewer")
    policy.load(tmp_path / "fewer", lora=fewer)
    with pytest.raises(UsageError, match=r"which has q_proj — use the adapter's value"):
        policy.load(tmp_path / "fewer", lora=LORA)
    with pytest.raises(UsageError, match=r"lora\.rank: 8 does not fit .* which has 4"):
        policy.load(tmp_path / "adapter", lora=LoRAConfig(rank=8, alpha=8))
    file = tmp_path / "adapter" / "adapter_config.json"
    gone = {**json.loads(file.read_text()), "base_model_name_or_path": "/nowhere/model"}
    file.write_text(json.dumps(gone))
    with pytest.raises(MissingError, match=r"base model is not at /nowhere/model — put it back"):
        policy.load(tmp_path / "adapter")


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000], ids=["cut", "list", "deep"])
def test_malformed_settings_of_an_adapter_are_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "adapter_config.json").write_text(text)
    with pytest.raises(UsageError, match=r"adapter_config\.json: cannot be read"):
        adapters.settings(tmp_path)


def test_without_an_adapter_there_is_no_base_model(small: Policy) -> None:
    with pytest.raises(ValueError, match="no adapter"), small.base_model():
        pass
