from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from air.errors import UsageError
from air.train.model import attention_mask_check
from air.train.model.attention import attention_mask, check_length, check_supported
from air.train.model.logprobs import token_logprobs
from air.train.serving.sampler import SamplingParams
from tests.unit.train import families
from tests.unit.train.conftest import generate

MODELS = families.pairs(families.FAMILIES)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "attention", "dtype"), families.PRECISE)
def test_the_sampler_agrees_with_the_trainer(
    family: str, attention: str, dtype: torch.dtype
) -> None:
    # Prompts of unlike lengths in fewer rows than requests: rows end, and others take their place.
    policy = families.precise(family, attention, dtype)
    draw = random.Random(3)
    prompts = [[draw.randrange(3, families.VOCAB) for _ in range(n)] for n in (3, 17, 9, 24, 5)]
    params = [SamplingParams(max_tokens=4 + 5 * n, seed=n) for n in range(len(prompts))]
    replies = generate(policy, prompts, params, max_batch=3, max_model_len=100)
    for prompt, reply in zip(prompts, replies, strict=True):
        with torch.no_grad():
            ids = torch.tensor([prompt + reply.token_ids])
            expected = token_logprobs(policy.model, ids)[0, len(prompt) :]
        difference = torch.tensor(reply.logprobs, dtype=dtype) - expected
        assert difference.abs().max() <= families.EXACT[dtype]


@pytest.mark.parametrize(("family", "attention"), MODELS)
def test_a_tree_in_one_row_agrees_with_its_branches(family: str, attention: str) -> None:
    model = families.model(family, attention)
    draw = random.Random(4)
    trunk, *twigs = ([draw.randrange(3, families.VOCAB) for _ in range(n)] for n in (12, 9, 11))
    row = [*trunk, *twigs[0], *twigs[1]]
    depth = [*range(21), *range(12, 23)]
    visible = torch.ones(len(row), len(row), dtype=torch.bool).tril()
    visible[21:, 12:21] = False
    positions = torch.tensor([depth])
    with torch.no_grad():
        logits = model(
            input_ids=torch.tensor([row]),
            position_ids=positions,
            attention_mask=attention_mask(model, visible[None, None], positions),
            use_cache=False,
        ).logits[0]
        for start, twig in ((12, twigs[0]), (21, twigs[1])):
            alone = model(input_ids=torch.tensor([[*trunk, *twig]]), use_cache=False).logits[0]
            whole = torch.cat([logits[:12], logits[start : start + len(twig)]])
            assert torch.allclose(whole, alone, atol=2e-5, rtol=1e-5)


def test_masks_by_hand() -> None:
    visible = torch.tensor([[[[True, False, False], [True, True, False], [True, True, True]]]])
    positions = torch.tensor([[0, 1, 2]])
    assert attention_mask(families.model("llama"), visible).equal(visible)
    low = torch.finfo(torch.float32).min
    added = attention_mask(families.model("llama", "eager"), visible)
    assert added[0, 0].tolist() == [[0, low, low], [0, 0, low], [0, 0, 0]]
    model = families.model("gemma3_text")
    model.config.sliding_window = 2
    masks = attention_mask(model, visible, positions)
    assert masks["full_attention"].equal(visible)
    # The third token sees the last two: itself and the second.
    assert masks["sliding_attention"][0, 0].tolist()[2] == [False, True, True]
    with pytest.raises(ValueError, match="needs `positions`"):
        attention_mask(model, visible)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            {"model_type": "qwen3_next", "layer_types": ["linear_attention"]},
            "kind linear_attention",
        ),
        ({"model_type": "llama4_text", "layer_types": ["chunked_attention"]}, "chunked_attention"),
        ({"model_type": "gpt_neo", "attention_layers": ["global", "local"]}, "kind local"),
        ({"model_type": "bloom"}, "ALiBi, model type bloom"),
        (
            {"model_type": "llama", "rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
            "rope_type dynamic",
        ),
    ],
)
def test_unsupported_layers_are_refused_by_name(settings: dict[str, object], problem: str) -> None:
    from transformers import PreTrainedConfig

    config = PreTrainedConfig(**{k: v for k, v in settings.items() if k != "model_type"})
    config.model_type = settings["model_type"]
    with pytest.raises(UsageError, match=rf"^a-model: .*{problem}.*prime-rl"):
        check_supported(config, "a-model")


def test_a_context_beyond_the_original_length_is_refused_for_longrope() -> None:
    from transformers import Phi3Config

    factors = [1.0] * 48
    rope = {"type": "longrope", "short_factor": factors, "long_factor": factors}
    config = Phi3Config(original_max_position_embeddings=4096, rope_scaling=rope)
    check_supported(config, "a-model")
    check_length(config, "a-model", 4096, "seq_len")
    with pytest.raises(UsageError, match=r"^seq_len: .*a-model change beyond 4096 .*longrope"):
        check_length(config, "a-model", 4097, "seq_len")
    check_length(families.model("llama").config, "a-model", 10**6, "seq_len")


class IgnoresMasks(torch.nn.Module):
    """A model whose tokens attend to all earlier ones, whatever mask it is given."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner, self.config = inner, inner.config

    dtype = torch.float32
    device = torch.device("cpu")

    def forward(self, attention_mask: object = None, **arguments: Any) -> Any:
        return self.inner(**arguments)


@pytest.mark.parametrize(("family", "attention"), MODELS)
def test_each_family_passes_the_check_of_a_load(family: str, attention: str) -> None:
    attention_mask_check.check(families.model(family, attention), family)


def test_a_model_that_reads_masks_otherwise_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^odd: the model does not follow .* differ by \d.*eager"):
        attention_mask_check.check(IgnoresMasks(families.model("llama")), "odd")


class HasNoPlainHead(torch.nn.Module):
    """A model whose logits are not its head applied to the last hidden states of its backbone."""

    base_model_prefix = "model"
    dtype, device = torch.float32, torch.device("cpu")

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner, self.config = inner, inner.config

    @property
    def base_model(self) -> Any:
        return self.inner.base_model

    def forward(self, **arguments: Any) -> Any:
        return self.inner(**arguments)


def test_a_model_whose_backbone_and_head_differ_from_the_whole_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^odd: .* backbone and head differ by \d.* prime-rl"):
        attention_mask_check.check(HasNoPlainHead(families.model("llama")), "odd")


def test_a_model_whose_backbone_takes_no_positions_is_refused() -> None:
    model = HasNoPlainHead(families.model("llama"))
    model.inner.base_model_prefix = "lm_head"  # so that the backbone is a linear layer
    with pytest.raises(UsageError, match=r"^odd: .* backbone and head cannot be called apart \("):
        attention_mask_check.check(model, "odd")


def test_a_model_of_images_is_refused_by_name() -> None:
    from transformers import Gemma3Config

    with pytest.raises(UsageError, match=r"^a-model: is a model of more than text \(type gemma3\)"):
        check_supported(Gemma3Config(), "a-model")
    check_supported(Gemma3Config().text_config, "a-model")
