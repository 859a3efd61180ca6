from __future__ import annotations

from pathlib import Path

import pytest
from renderers import Qwen3RendererConfig, create_renderer
from renderers.base import load_tokenizer

from air.errors import ConfigError, MissingError, UsageError
from air.train.model import policy
from air.train.model.policy import Policy
from tests.unit.train import families

TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "first\n\n question "},
]


@pytest.mark.parametrize(
    "text", ["plain", "  two  spaces\t\r\n\n\nend\n", "héllo 中文 ﬁ e\u0301 \U0001f600", "\x00\x7f"]
)
def test_every_text_decodes_to_itself(small: Policy, text: str) -> None:
    assert small.tokenizer.decode(small.tokenizer.encode(text)) == text


def test_same_texts_and_seed_build_the_same_policy(tmp_path: Path) -> None:
    first, second = (
        policy.load(policy.build(tmp_path / n, ["a b c"] * 3, hidden=32, layers=1, seed=7))
        for n in "12"
    )
    assert first.tokenizer.get_vocab() == second.tokenizer.get_vocab()
    for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert a.equal(b)


@pytest.mark.parametrize("std", [0.02, 0.09])
def test_the_size_of_the_random_weights(tmp_path: Path, std: float) -> None:
    folder = policy.build(tmp_path / "new", ["a b c"] * 3, layers=1, initializer_range=std)
    weights = policy.load(folder).model.model.layers[0].mlp.up_proj.weight
    assert weights.detach().std().item() == pytest.approx(std, rel=0.02)


def test_a_built_folder_is_an_ordinary_one(folder: Path, small: Policy) -> None:
    assert {p.name for p in folder.iterdir()} >= {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert small.model.config.model_type == "qwen3"
    assert small.model.config.tie_word_embeddings
    ends = small.tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    assert small.eos_ids == frozenset(ends)
    assert small.model.config.vocab_size == len(small.tokenizer) <= 400
    assert not small.model.training
    assert [p.name for p in folder.parent.iterdir()] == ["small"]


def test_renderer_takes_the_folder_by_path(folder: Path, small: Policy) -> None:
    renderer = create_renderer(
        load_tokenizer(str(folder)), Qwen3RendererConfig(enable_thinking=False)
    )
    ids = renderer.render_ids(TURNS, add_generation_prompt=True)
    assert small.tokenizer.decode(ids).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert renderer.get_stop_token_ids()[0] in small.eos_ids


def test_turns_only_ever_grow(small: Policy) -> None:
    renderer = small.renderer()
    stop = renderer.get_stop_token_ids()[0]
    ids = renderer.render_ids(TURNS, add_generation_prompt=True)
    for turn in range(4):
        reply = [*small.tokenizer.encode(f"  reply {turn}\n"), stop]
        follow = [{"role": "user", "content": f"\nobservation {turn}\n"}]
        bridged = renderer.bridge_to_next_turn(ids, reply, follow).token_ids
        assert bridged[: len(ids) + len(reply)] == [*ids, *reply]
        ids = bridged


def test_chat_template_renders_like_the_renderer(small: Policy) -> None:
    messages = [
        *TURNS,
        {"role": "assistant", "content": "answer"},
        {"role": "user", "content": "and?"},
    ]
    ours = small.renderer().render_ids(messages, add_generation_prompt=True)
    template = small.tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    assert template["input_ids"] == ours


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match=r"nowhere: no such model folder — check the path"):
        policy.load(tmp_path / "nowhere")
    with pytest.raises(MissingError, match=r"holds no model \(no config.json\)"):
        policy.load(tmp_path)


def test_broken_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UsageError, match="cannot be loaded"):
        policy.load(tmp_path)


def test_build_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="already exists"):
        policy.build(tmp_path, ["text"])
    with pytest.raises(ConfigError, match="too small"):
        policy.build(tmp_path / "new", ["text"], vocab=200)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_an_attention_that_the_family_lacks_names_its_key(tmp_path: Path, small: Policy) -> None:
    families.model("gptj", "eager").save_pretrained(tmp_path)
    small.tokenizer.save_pretrained(tmp_path)
    assert policy.load(tmp_path).model.config._attn_implementation == "eager"
    with pytest.raises(
        UsageError, match=r"^embedded\.attention: .* with sdpa .* to auto or eager$"
    ):
        policy.load(tmp_path, attention="sdpa")


def test_unsupported_layers_are_refused(tmp_path: Path, small: Policy) -> None:
    small.model.config.layer_types = ["full_attention", "chunked_attention"]
    small.save(tmp_path)
    with pytest.raises(UsageError, match=r"chunked_attention — .*prime-rl"):
        policy.load(tmp_path)


def test_cut_weights_are_named_in_one_line(tmp_path: Path) -> None:
    folder = policy.build(tmp_path / "model", ["a b c"], vocab=300)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(UsageError, match=r"model: cannot be loaded: .* — is the folder complete\?"):
        policy.load(folder)
