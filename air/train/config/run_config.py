"""The run file of the embedded engine: a subset of prime-rl 0.8's `RLConfig`, with the same names and
meanings, plus the table `[embedded]`, which only this engine reads.

A key outside the subset is refused, so no setting of a run file is ignored silently.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator
from renderers import RendererConfig

from air.config import BaseConfig
from air.env.config import check_history
from air.train.algorithms import ESTIMATORS, Estimator, imported
from air.train.config.env_source import EnvSource
from air.train.config.model_options import (
    AdamWConfig,
    ConstantSchedulerConfig,
    DefaultLossConfig,
    OptimizerConfig,
    SchedulerConfig,
    check_schedule,
)

Inference = Literal["auto", "vllm", "transformers"]


class ModelConfig(BaseConfig):
    """`[model]`"""

    name: str = "Qwen/Qwen3-0.6B"
    """Hub id or folder of the policy."""


class RunNameConfig(BaseConfig):
    """`[run]`"""

    name: str | None = None
    """The run's name; its folder is `output_dir / name`. None: a new random name."""


class CheckpointConfig(BaseConfig):
    """`[ckpt]`"""

    interval: int | None = Field(None, ge=1)
    """Steps between checkpoints. None: only at the end."""
    keep_last: int | None = Field(None, ge=1)
    """Number of the latest checkpoints to keep. None: all."""


class ResumeConfig(BaseConfig):
    """`[resume]`: continue the run named `run.name` from a checkpoint."""

    step: int | None = Field(None, ge=1)
    """Step of the checkpoint; None: the latest."""


class TrainerConfig(BaseConfig):
    """`[trainer]`"""

    optim: OptimizerConfig = AdamWConfig()
    """The optimiser."""
    scheduler: SchedulerConfig = ConstantSchedulerConfig()
    """The learning-rate schedule."""
    loss: DefaultLossConfig = DefaultLossConfig()
    """The policy loss."""


class GRPOConfig(BaseConfig):
    """`[orchestrator.algo]`"""

    type: Literal["grpo"] = "grpo"
    """The advantage estimator: reward minus the group's mean."""


class SamplingConfig(BaseConfig):
    """`[orchestrator.train.sampling]`"""

    temperature: float = Field(1.0, gt=0, le=2.0)
    """Sampling temperature; the trainer divides the logits by it too."""
    max_completion_tokens: int | None = Field(None, ge=1)
    """Longest reply in tokens; a longer one is cut, which ends the episode."""


class SourceConfig(EnvSource, BaseConfig):
    """`[[orchestrator.train.source]]`"""


class TrainConfig(BaseConfig):
    """`[orchestrator.train]`"""

    source: list[SourceConfig] = Field(min_length=1)
    """Sources of prompts."""
    sampling: SamplingConfig = SamplingConfig()
    """How replies are sampled."""


class OrchestratorConfig(BaseConfig):
    """`[orchestrator]`"""

    batch_size: int = Field(32, ge=1)
    """Episodes a step."""
    group_size: int = Field(8, ge=1)
    """Episodes of one prompt."""
    algo: GRPOConfig = GRPOConfig()
    """The advantage estimator."""
    train: TrainConfig
    """Prompts and sampling."""
    renderer: RendererConfig | None = None
    """How messages become tokens. None: by the model's family."""


class EstimatorConfig(BaseConfig):
    """`[embedded.estimator]`: an advantage estimator from outside the package."""

    import_path: str
    """A function that this Python can import, as `module:name`, such as `my_lab:leave_one_out`."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Further arguments: the function is called as `function(rewards, **kwargs)`."""

    @field_validator("import_path")
    @classmethod
    def _importable(cls, value: str) -> str:
        imported.find(value)
        return value

    @model_validator(mode="after")
    def _callable(self) -> Self:
        imported.check_kwargs(self.import_path, self.kwargs)
        return self


class EmbeddedConfig(BaseConfig):
    """`[embedded]`: settings of the embedded engine alone."""

    threads: int | None = Field(None, ge=1)
    """CPU threads of torch. None: half the cores, because boxes use the same cores; on busy cores, several
    threads that wait for each other are many times slower than one."""
    inference: Inference = "auto"
    """Who samples: a vLLM process, or this process with transformers. auto: vLLM if it is installed and
    there is a GPU. `--inference` on the command line."""
    inference_start_seconds: float = Field(600.0, gt=0)
    """Longest time until vLLM is ready, in seconds."""
    port: int = Field(0, ge=0, le=65535)
    """Port of the inference server on loopback; 0: a free one."""
    max_batch: int = Field(64, ge=1)
    """Replies generated at once."""
    micro_batch_tokens: int = Field(8192, ge=1)
    """Tokens, padding included, in one forward and backward pass."""
    shuffle_rewards: bool = False
    """Control experiment: rewards are shuffled within their group, so that nothing can be learnt."""
    reward_to_go: bool = False
    """Pay each turn by the rewards from that turn on, compared with the same turn of the group's other
    episodes; off: pay each trace by its whole reward. Needs `credit = "episode"`."""
    estimator: EstimatorConfig | None = None
    """Your own advantage estimator, in place of the one that `orchestrator.algo` names."""
    max_failed_steps: int = Field(3, ge=1)
    """The run stops after this many consecutive steps without an episode that ended well."""
    seed: int = 0
    """Seed of the order of prompts and of `shuffle_rewards`."""

    def set_threads(self) -> None:
        """Sets torch's number of threads; call it before any other thread uses torch."""
        import torch

        torch.set_num_threads(self.threads or max(1, (os.cpu_count() or 2) // 2))


class RunConfig(BaseConfig):
    """A whole run file."""

    max_steps: int = Field(ge=1)
    """Updates of the weights."""
    seq_len: int = Field(2048, ge=64)
    """Longest episode in tokens; a longer one is ended before that, and graded."""
    output_dir: Path = Path("outputs")
    """Folder of runs."""
    run: RunNameConfig = RunNameConfig()
    """The run's name."""
    model: ModelConfig = ModelConfig()
    """The policy."""
    ckpt: CheckpointConfig | None = None
    """Checkpoints during the run; None: only the final one."""
    resume: ResumeConfig | None = None
    """Continue from a checkpoint."""
    trainer: TrainerConfig = TrainerConfig()
    """Optimiser and loss."""
    orchestrator: OrchestratorConfig
    """Episodes and advantages."""
    embedded: EmbeddedConfig = EmbeddedConfig()
    """The embedded engine's own settings."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for source in self.orchestrator.train.source:
            size = source.group_size or self.orchestrator.group_size
            if self.orchestrator.batch_size % size:
                raise ValueError(
                    f"orchestrator.batch_size ({self.orchestrator.batch_size}) must be a multiple of "
                    f"the group_size ({size})"
                )
            check_history(source.env)
            if self.embedded.reward_to_go and getattr(source.env, "credit", "") == "segment":
                raise ValueError(
                    'embedded.reward_to_go pays turns within one trace: it needs credit = "episode"'
                )
        if self.resume is not None and self.run.name is None:
            raise ValueError("resume needs run.name, the run to continue")
        check_schedule(self.trainer.scheduler, self.max_steps)
        return self

    def named(self) -> RunConfig:
        """The same run with a name."""
        if self.run.name is not None:
            return self
        names = "-".join(s.resolved_name for s in self.orchestrator.train.source)
        name = f"{names}--{Path(self.model.name).name}--{secrets.token_hex(3)}"
        return self.model_copy(update={"run": RunNameConfig(name=name)})

    def with_inference(self, inference: Inference) -> RunConfig:
        """The same run with this inference server."""
        embedded = self.embedded.model_copy(update={"inference": inference})
        return self.model_copy(update={"embedded": embedded})

    def estimator(self) -> Estimator:
        """The advantage estimator of the run."""
        own = self.embedded.estimator
        if own is not None:
            return imported.load(own.import_path, own.kwargs)
        return ESTIMATORS[self.orchestrator.algo.type]

    @property
    def folder(self) -> Path:
        """The run's folder; the run must be named."""
        assert self.run.name is not None
        return self.output_dir.expanduser() / self.run.name
