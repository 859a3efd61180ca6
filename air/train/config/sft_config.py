"""Defines the settings in a run file (TOML) of the command `sft`: supervised training on demonstrations.

The keys are a subset of prime-rl 0.8's `SFTConfig`, with the same names and meanings.
"""

from __future__ import annotations

from pathlib import Path

from renderers import RendererConfig

from air.train.config.embedded_config import ComputeConfig
from air.train.config.model_options import LoRAConfig, SFTConfig
from air.train.config.run_config import CheckpointConfig, ModelConfig, ResumeConfig
from air.train.config.run_name import RunNameConfig


class SFTModelConfig(ModelConfig):
    """Settings in the table `[model]` of a run file of the command `sft`: the model, and which of its weights
    are trained."""

    lora: LoRAConfig | None = None
    """Settings of LoRA. None: all weights are trained."""


class SFTRunConfig(SFTConfig):
    """All settings in a run file of the command `sft`, which trains on demonstrations."""

    output_dir: Path = Path("outputs")
    """The folder of all runs. The trained model is written to `output_dir / run.name`."""
    run: RunNameConfig = RunNameConfig(name="sft")
    """The name of the run."""
    model: SFTModelConfig = SFTModelConfig()
    """The model to train."""
    renderer: RendererConfig | None = None
    """The renderer, which turns chat messages into token ids. None: the renderer of the model's family."""
    ckpt: CheckpointConfig | None = None
    """When checkpoints are written, from which an interrupted training can resume. None: a checkpoint is
    written only when the training is interrupted."""
    resume: ResumeConfig | None = None
    """The checkpoint from which an interrupted training continues. None: a new training."""
    embedded: ComputeConfig = ComputeConfig()
    """Settings that only the embedded training engine has."""

    @property
    def folder(self) -> Path:
        """The path of the folder to which the trained model is written: `output_dir / run.name`."""
        return self.output_dir.expanduser() / (self.run.name or "sft")
