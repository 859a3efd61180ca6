from __future__ import annotations

import pytest
import torch

from air.errors import UsageError
from air.train.config.model_options import AdamWConfig, LoRAConfig, SGDConfig
from air.train.devices import memory
from air.train.devices.memory import GB, Memory, estimate
from air.train.model import adapters
from tests.unit.train import families


def kept_for_backward(model: torch.nn.Module, tokens: int) -> int:
    """Bytes of the tensors that a forward pass keeps for the backward pass, weights left out."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        ids = torch.randint(3, families.VOCAB, (1, tokens))
        model.base_model(input_ids=ids, use_cache=False)  # type: ignore[operator]
    return sum(kept.values())


def estimated(model: object, **changes: int) -> Memory:
    sizes = {"micro_batch_tokens": 64, "seq_len": 64, "max_batch": 4, **changes}
    return estimate(model, AdamWConfig(), **sizes)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_activations_are_what_torch_keeps(family: str) -> None:
    model = families.model(family)
    logits = 64 * families.VOCAB * 4 * 3
    measured = kept_for_backward(model, 64)
    # The formula does not know small tensors (a norm's scale), nor what a version happens to copy.
    assert estimated(model).activations - logits == pytest.approx(measured, rel=0.15)


def test_parts_by_hand() -> None:
    model = families.model("llama")
    count = sum(p.numel() for p in model.parameters())
    full = estimated(model)
    assert full.weights == 4 * count
    assert full.optimizer == (4 + 8) * count  # gradient; AdamW's two states
    # 4 replies of 64 tokens, 2 layers, keys and values of 2 heads of 8 numbers.
    assert full.keys_values == 4 * 64 * 2 * 2 * (2 * 8) * 4
    # Two gradients of the embeddings, the largest weight, and their sum, before they are added.
    embeddings = families.VOCAB * model.config.hidden_size
    assert full.gradient_copies == 3 * 4 * embeddings
    training = full.activations + full.gradient_copies
    assert full.gradients == 4 * count
    sampling = full.keys_values - full.gradients
    assert full.peak == memory.PROGRAM + full.resident + max(training, sampling)
    copies = estimated(model, weight_copies=GB)
    assert copies.sampling == full.keys_values + GB
    assert copies.peak == memory.PROGRAM + full.resident + GB + sampling
    assert "copies of weights 1.0" in str(copies)
    assert estimated(model, weight_copies=GB, max_batch=0).sampling == 0  # another process samples
    # The prefix cache has the replies of the step, or what it may have.
    reply = full.keys_values // 4
    assert estimated(model, batch_size=10, prefix_cache=GB).keys_values == 14 * reply
    assert estimated(model, batch_size=10, prefix_cache=100).keys_values == 4 * reply + 100
    sgd = estimate(model, SGDConfig(), micro_batch_tokens=64, seq_len=64, max_batch=0)
    assert (sgd.optimizer, sgd.keys_values) == (8 * count, 0)
    low = estimated(model.bfloat16())
    assert (low.weights, low.optimizer) == (2 * count, (4 + 4 + 8) * count)  # and the copy


def test_recomputed_layers_keep_their_inputs_and_other_models_are_counted() -> None:
    model = families.model("llama")
    logits = 64 * families.VOCAB * 4 * 3
    layer = (estimated(model).activations - logits) // 2
    again = estimated(model, gradient_checkpointing=True)
    assert again.activations == layer + 2 * 64 * model.config.hidden_size * 4 + logits
    with_reference = estimated(model, other_models=GB)
    assert with_reference.peak == estimated(model).peak + GB
    assert "other models 1.0" in str(with_reference)
    assert estimated(model, divergence=True).activations == estimated(model).activations + logits


def test_an_adapter_needs_states_for_itself_only() -> None:
    model = families.model("llama")
    count = sum(p.numel() for p in model.parameters())
    adapters.add(model, LoRAConfig(rank=2), "llama")
    adapter = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert adapter < count
    assert estimated(model).optimizer == 12 * adapter
    assert estimated(model).gradient_copies < adapter * 3 * 4


def test_a_run_that_does_not_fit_names_numbers_and_keys() -> None:
    need = Memory(weights=2 * GB, optimizer=6 * GB, activations=5 * GB, keys_values=GB)
    assert need.peak == 13 * GB
    assert memory.warning(need, 14 * GB, "this machine") == ""
    assert memory.warning(need, 12 * GB, "this machine") == (
        "this run may need about 13.0 GB (weights 2.0, optimizer 6.0, activations 5.0, keys and values 1.0, "
        "program 0.0), "
        "and this machine has 12.0 GB free; lower embedded.micro_batch_tokens or seq_len, or use "
        "[trainer.model.lora], which trains few weights"
    )


def test_trainer_and_vllm_share_a_gpu() -> None:
    need = Memory(weights=2 * GB, optimizer=6 * GB, activations=5 * GB, keys_values=0)
    # Of 20 GB: 8 stay with the trainer, 2 are for both programs, so 10 are vLLM's.
    share = memory.share_for_vllm(need, 20 * GB, 2 * GB)
    assert share == 0.5
    assert memory.split(need, 20 * GB, share) == (
        "memory of 20.0 GB: while sampling, trainer 8.0 and vLLM 10.0 GB; while training, vLLM sleeps and "
        "the trainer uses about 13.0 GB"
    )
    for total in (12, 14):  # too little for vLLM's 3; too little to train
        with pytest.raises(
            UsageError, match=r"too few for trainer and vLLM .*trainer\.model\.lora.*device = .cpu"
        ):
            memory.share_for_vllm(need, total * GB, 2 * GB)


def test_free_memory_of_the_machine_is_known() -> None:
    assert 0 < memory.available(torch.device("cpu")) < 2**50
