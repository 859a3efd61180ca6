"""The run file of `sft`: a subset of prime-rl 0.8's `SFTConfig`, same names and meanings."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from renderers import RendererConfig

from air.train.config.model_options import SFTConfig
from air.train.config.run_config import EmbeddedConfig, ModelConfig, RunNameConfig


class SFTRunConfig(SFTConfig):
    """A whole run file of `sft`."""

    output_dir: Path = Path("outputs")
    """Folder of runs; the policy is written to `output_dir / run.name`."""
    run: RunNameConfig = RunNameConfig(name="sft")
    """The run's name."""
    model: ModelConfig = ModelConfig()
    """The policy to start from."""
    renderer: RendererConfig | None = None
    """How messages become tokens. None: by the model's family."""
    embedded: EmbeddedConfig = Field(EmbeddedConfig(), exclude=True)
    """The embedded engine's own settings."""

    @property
    def folder(self) -> Path:
        """The folder of the trained policy."""
        return self.output_dir.expanduser() / (self.run.name or "sft")
