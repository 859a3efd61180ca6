"""A stand-in for prime-rl's trainer, which needs a GPU: `python -m tests.prime_rl.trainer @ trainer.json`.

Prime-rl's own: the config, the data loader, the loss and its normalisation, the shifts, the mismatch. Ours: a
transformers model on the CPU, one sample at a time (the real one packs them behind a mask), torch's AdamW at
the config's rate, and `save_pretrained` into `broadcasts/step_N`, which is kept for every version.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from prime_rl.configs.trainer import TrainerConfig
from prime_rl.trainer.rl.data import DataLoader
from prime_rl.trainer.rl.loss import (
    compute_importance_ratio_and_mismatch_kl,
    compute_loss,
    selective_log_softmax,
    setup_rl_loss_fn,
    shift_tensor_left,
    shift_tensor_right,
)
from prime_rl.utils.config import cli
from transformers import AutoModelForCausalLM, AutoTokenizer

ROWS = "stand_in_trainer.jsonl"


def main() -> None:
    """Trains `max_steps` steps; one line each in the run's `stand_in_trainer.jsonl`."""
    config = cli(TrainerConfig)
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(config.model.name, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(config.model.name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.optim.lr, weight_decay=0.0)
    loss_fn = setup_rl_loss_fn(config.loss)
    loader = DataLoader(config.output_dir, 1, 1, config.rollout_transport)
    _broadcast(config.output_dir, 0, model, tokenizer)
    for step in range(1, config.max_steps + 1):
        loader.wait_for_batch()
        row = _step(model, optimizer, loss_fn, loader.get_batch(), config.optim.max_norm)
        _broadcast(config.output_dir, step, model, tokenizer)
        with (config.output_dir / ROWS).open("a") as file:
            file.write(json.dumps({"step": step, **row}) + "\n")


def _step(
    model: Any, optimizer: Any, loss_fn: Any, batches: list[Any], max_norm: float | None
) -> dict[str, float]:
    scale = max(1, sum(int(batch["loss_mask"].sum()) for batch in batches))
    total, mismatch = 0.0, []
    for batch in batches:
        lengths = batch["sequence_lengths"]
        logprobs = torch.cat(
            [
                token_logprobs(model, ids, temperatures)
                for ids, temperatures in zip(
                    batch["input_ids"].split(lengths, 1),
                    batch["temperatures"].split(lengths, 1),
                    strict=True,
                )
            ],
            dim=1,
        )
        inference, mask = batch["inference_logprobs"], batch["loss_mask"]
        loss, _ = compute_loss(
            trainer_logprobs=logprobs.squeeze(0).split(lengths),
            inference_logprobs=inference.squeeze(0).split(lengths),
            ref_logprobs=None,
            advantages=batch["advantages"].squeeze(0).split(lengths),
            loss_mask=mask.squeeze(0).split(lengths),
            rl_weights=None,
            ce_weights=None,
            ref_kl_weights=None,
            rl_loss_fn=loss_fn,
            rl_scale=scale,
            ce_scale=1,
            ref_kl_scale=1,
        )
        loss.backward()
        total += float(loss.detach())
        with torch.no_grad():
            _, _, kl = compute_importance_ratio_and_mismatch_kl(logprobs, inference)
        mismatch.append(kl[mask])
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm or float("inf"))
    optimizer.step()
    optimizer.zero_grad()
    kl = torch.cat(mismatch)
    return {
        "loss": total,
        "mismatch_kl": float(kl.mean()),
        "mismatch_kl_max": float(kl.max()),
        "grad_norm": float(norm),
        "tokens": kl.numel(),
    }


def token_logprobs(model: Any, ids: torch.Tensor, temperatures: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of one sample's tokens, `[1, seq]`, as prime-rl's trainer computes them."""
    logits = model(input_ids=ids).logits.float() / temperatures.unsqueeze(-1)
    return shift_tensor_right(selective_log_softmax(logits, shift_tensor_left(ids)))


def _broadcast(output_dir: Path, version: int, model: Any, tokenizer: Any) -> None:
    folder = output_dir / "broadcasts" / f"step_{version}"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "STABLE").touch()


if __name__ == "__main__":
    main()
