"""Runs TRL's side of `bench/train`: its tuned `GRPOTrainer`, in the Python environment that `.ci/trl`
makes.

`Trainer.train` runs all rounds. A callback waits before each step until the benchmark asks for the round. The
time of sampling is the time of `_generate_single_turn`, in which TRL calls `model.generate`. The time of
training is the time of the step without the rollout: forward and backward passes and the update. TRL's other
work (text of the replies, rewards, padding) is not counted.

Episodes of several turns use `rollout_func`, TRL's interface for them. This function calls
`_generate_single_turn` once for each turn with the whole conversation so far, as TRL's own loop for tools
does. It returns the conversation as one completion with a mask, so TRL trains each episode once.
"""

from __future__ import annotations

import tempfile
import time
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from bench.train import workload
from bench.train.workload import GROUP, Case


def settings(case: Case, rounds: int, output: str) -> GRPOConfig:
    """Returns TRL's settings for a case. A comment gives the reason for each; all other settings have TRL's
    defaults."""
    rows = max(n for n in range(1, case.episodes + 1) if fits(case, n))
    return GRPOConfig(
        output_dir=output,
        use_cpu=True,
        bf16=False,  # both sides compute in float32; TRL's default is bfloat16
        # One rollout of all episodes, then one update: the batches of generation are as large as can be.
        num_generations=GROUP,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=case.episodes // rows,
        steps_per_generation=case.episodes // rows,
        num_iterations=1,  # one update of each episode; so TRL needs no second pass for old log-probabilities
        beta=0.0,  # no reference model
        loss_type="dapo",  # the mean over all trained tokens, as air's
        scale_rewards="none",  # reward minus the group's mean, as air's
        max_completion_length=case.reply,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        gradient_checkpointing=False,  # TRL's default saves memory and costs a forward pass
        # The optimiser, as air's: TRL's default for AdamW is the fused one, which is the fastest here.
        learning_rate=workload.LEARNING_RATE,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=workload.MAX_NORM,
        optim="adamw_torch_fused",
        # Nothing but the steps: no logs, no checkpoints, no loader processes that take a core.
        max_steps=rounds,
        shuffle_dataset=False,
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def fits(case: Case, rows: int) -> bool:
    """Whether TRL can process a case in batches of `rows` episodes: such batches divide the episodes of a
    round evenly, and one pass over a batch has at most `ROW_TOKENS` tokens."""
    return case.episodes % rows == 0 and rows * case.length <= workload.ROW_TOKENS


class TimedTrainer(GRPOTrainer):  # type: ignore[misc]
    """A `GRPOTrainer` that measures its sampling and rollout times and counts its tokens."""

    sampling_s = 0.0
    rollout_s = 0.0
    batch: Any = None

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        result = super()._generate_single_turn(*args, **kwargs)
        self.sampling_s += time.perf_counter() - began
        return result

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        began = time.perf_counter()
        self.batch = super()._generate_and_score_completions(inputs)
        self.rollout_s += time.perf_counter() - began
        return self.batch

    def counts(self) -> dict[str, Any]:
        """Returns the numbers of tokens of the last batch, and the checksum of the tokens that were not
        sampled."""
        batch = self.batch
        prompt, completion = batch["prompt_mask"].bool(), batch["completion_mask"].bool()
        sampled = completion & batch.get("tool_mask", completion).bool()
        assert bool((batch["advantages"] != 0).all()), "air trains every episode, so TRL must"
        return {
            "trained_tokens": int(sampled.sum()),
            "episode_tokens": int(prompt.sum() + completion.sum()),
            "given": workload.digest(
                [*ids[mask].tolist(), *reply[read].tolist()]
                for ids, mask, reply, read in zip(
                    batch["prompt_ids"],
                    prompt,
                    batch["completion_ids"],
                    completion & ~sampled,
                    strict=True,
                )
            ),
        }


class Rounds(TrainerCallback):  # type: ignore[misc]
    """A callback that waits before each training step until the benchmark asks for the round, and reports the
    step's measurements."""

    def __init__(self, wire: workload.Wire) -> None:
        self.wire = wire
        self.trainer: TimedTrainer | None = None
        self.began = 0.0

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        assert self.trainer is not None
        self.wire.await_round()
        self.trainer.sampling_s = self.trainer.rollout_s = 0.0
        self.began = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        took = time.perf_counter() - self.began
        trainer = self.trainer
        assert trainer is not None
        self.wire.measured(
            sampling_s=trainer.sampling_s,
            training_s=took - trainer.rollout_s,
            **trainer.counts(),
        )


class Rollout:
    """TRL's `rollout_func` for episodes of several turns: samples the replies and inserts the observations
    between them."""

    def __init__(self, case: Case, vocab: int) -> None:
        self.case, self.vocab = case, vocab
        self.rounds = 0

    def __call__(self, prompts: list[str], trainer: Any) -> dict[str, Any]:
        starts = trainer.processing_class(text=prompts)["input_ids"]
        case, number = self.case, self.rounds
        self.rounds += 1
        read = [case.observations(number, turn, self.vocab) for turn in range(case.turns - 1)]
        whole = [list(start) for start in starts]
        masks: list[list[int]] = [[] for _ in starts]
        for turn in range(case.turns):
            replies, _ = trainer._generate_single_turn(whole, None, {}, num_generations=1)
            for at, reply in enumerate(replies):
                more = read[turn][at] if turn < len(read) else []
                whole[at] += [*reply, *more]
                masks[at] += [1] * len(reply) + [0] * len(more)
        completions = [ids[len(start) :] for ids, start in zip(whole, starts, strict=True)]
        return {
            "prompt_ids": starts,
            "completion_ids": completions,
            "logprobs": None,
            "env_mask": masks,
        }


def main() -> None:
    folder, case, rounds, threads = workload.arguments()
    wire = workload.Wire()
    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    vocab = model.config.vocab_size
    prompts = [case.prompts(number, vocab) for number in range(rounds)]
    texts = [tokenizer.decode(prompt) for each in prompts for prompt in each]
    rollout = Rollout(case, vocab) if case.turns > 1 else None
    callback = Rounds(wire)

    def rewards(completions: list[Any], **_: Any) -> list[float]:
        return [workload.reward(at) for at in range(len(completions))]

    with tempfile.TemporaryDirectory() as output:
        trainer = TimedTrainer(
            model=model,
            reward_funcs=rewards,
            args=settings(case, rounds, output),
            train_dataset=Dataset.from_dict({"prompt": texts}),
            processing_class=tokenizer,
            callbacks=[callback],
            rollout_func=rollout,
        )
        callback.trainer = trainer
        wire.ready(
            threads=torch.get_num_threads(),
            dtype=str(model.dtype),
            attention=model.config._attn_implementation,
            parameters=sum(p.numel() for p in model.parameters()),
            torch=torch.__version__,
            rows=trainer.args.per_device_train_batch_size,
        )
        trainer.train()
        wire.end()


if __name__ == "__main__":
    main()
