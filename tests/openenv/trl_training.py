"""Trains a tiny random policy by TRL's `GRPOTrainer` on a server of air's episodes, and prints what it saw.

Run by the interpreter that has TRL: `python trl_training.py ors|openenv URL [CODE]`. `CODE` is the file
with the Python block of the documentation. What the policy says is scripted, since a random one calls no
tool; all the rest is TRL's own: sessions, calls, rewards, advantages, and the step of the optimiser.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import trl
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl import GRPOConfig, GRPOTrainer

GROUP = 2
SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"),
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
)
GOOD = "echo 'method=2 level=2' > config; python3 solve.py"
POOR = "echo 'method=1 level=4' > config; python3 solve.py"


def tokenizer() -> PreTrainedTokenizerFast:
    """Returns a tokenizer of bytes with the chat template of Qwen3, which TRL knows."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE({piece: n for n, piece in enumerate(alphabet)}, []))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens(list(SPECIAL[:3]))
    raw.add_tokens(list(SPECIAL[3:]))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    templates = Path(trl.__file__).parent / "chat_templates"
    fast.chat_template = (templates / "qwen3.jinja").read_text()
    return fast


def model(tokens: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """Returns a random policy."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokens),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=8192,
    )
    config.eos_token_id, config.pad_token_id = tokens.eos_token_id, tokens.pad_token_id
    return Qwen3ForCausalLM(config)


def call(name: str, **arguments: str) -> str:
    """Returns a call of a tool as Qwen3 writes it."""
    body = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{body}\n</tool_call><|im_end|>"


class Scripted(GRPOTrainer):
    """A trainer whose policy says what is written here: each second episode does well."""

    said = 0
    first_ends = ""
    later: Sequence[str] = (call("validate"), call("submit"), "Done.<|im_end|>")

    def _generate_single_turn(self, prompt_ids: Any, *args: Any, **kwargs: Any) -> Any:
        replies = []
        for ids in prompt_ids:
            text = self.processing_class.decode(ids)
            turn = text.count("<tool_response>")
            if turn == 0:
                script, self.said = (GOOD if self.said % 2 == 0 else POOR), self.said + 1
                replies.append(call("bash", script=f"{script}\n{self.first_ends}".strip()))
            else:
                replies.append(self.later[min(turn, len(self.later)) - 1])
        return [
            self.processing_class(reply, add_special_tokens=False)["input_ids"] for reply in replies
        ], None


def parts(kind: str, url: str, code: str) -> dict[str, Any]:
    """Returns what GRPOTrainer gets about the environment."""
    if kind == "openenv":
        names: dict[str, Any] = {}
        exec(Path(code).read_text().replace("http://127.0.0.1:8080", url), names)
        return {
            "train_dataset": names["dataset"],
            "environment_factory": names["Research"],
        }
    os.environ |= {"OPENREWARD_SESSION_URL": url, "OPENREWARD_API_URL": url}
    from trl.experimental.openreward import OpenRewardSpec

    spec = OpenRewardSpec(url, num_tasks=4)

    def total(environments: Any, **_: Any) -> list[float]:
        return [sum(reward or 0.0 for reward in env.rewards) for env in environments]

    return {
        "train_dataset": spec.train_dataset,
        "environment_factory": spec.environment_factory,
        "reward_funcs": total,
    }


def main() -> None:
    kind, url, *rest = sys.argv[1:]
    tokens = tokenizer()
    policy = model(tokens)
    before = torch.cat([p.detach().flatten().clone() for p in policy.parameters()])
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        num_generations=GROUP,
        per_device_train_batch_size=GROUP,
        max_completion_length=3000,
        max_tool_calling_iterations=5,
        gradient_checkpointing=False,
        learning_rate=1e-3,
        max_steps=2,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        chat_template_kwargs={"enable_thinking": False},
    )
    if kind == "openenv":  # its one tool takes a script that may end in `submit`
        Scripted.first_ends = "validate"
        Scripted.later = (call("bash", script="submit"), "Done.<|im_end|>")
    trainer = Scripted(
        model=policy, processing_class=tokens, args=config, **parts(kind, url, *rest or [""])
    )
    trainer.train()
    after = torch.cat([p.detach().flatten() for p in policy.parameters()])
    rows = [row for row in trainer.state.log_history if "reward" in row]
    result = {
        "rewards": [row["reward"] for row in rows],
        "spreads": [row["reward_std"] for row in rows],
        "failures": [row.get("tools/failure_frequency") for row in rows],
        "calls": [row.get("tools/call_frequency") for row in rows],
        "moved": float((after - before).abs().max()),
    }
    print("RESULT " + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
