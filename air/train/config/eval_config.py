"""Settings of evaluations during a run: the tables `[orchestrator.eval]` and `[[orchestrator.eval.source]]`.

Names and meanings are those of prime-rl 0.8. Two settings behave differently; their descriptions say how.
"""

from __future__ import annotations

from collections import Counter
from typing import Self

from pydantic import Field, field_validator, model_validator

from air.config import BaseConfig
from air.train.config.env_source import EnvSource


def _a_number_of_examples(value: int | None) -> int | None:
    if value is not None and value != -1 and value < 1:
        raise ValueError("must be 1 or more, or -1 for all prompts of the source")
    return value


class EvalSamplingConfig(BaseConfig):
    """Settings in the run file's table `[orchestrator.eval.sampling]`: how the model samples replies."""

    temperature: float = Field(0.0, ge=0, le=2.0)
    """Sampling temperature. 0: always the most likely token. (In prime-rl, the inference server chooses the
    default.)"""
    max_completion_tokens: int | None = Field(None, ge=1)
    """Largest number of tokens in a reply; a longer reply is cut, and its episode ends. None: only `seq_len`
    limits it."""


class EvalSourceConfig(EnvSource, BaseConfig):
    """Settings of one source of held-out prompts and its environment: `[[orchestrator.eval.source]]`."""

    ratio: float = Field(1.0, exclude=True)
    """Must not be set: a weight would have no effect, because an evaluation does not draw prompts at random
    from its sources."""
    num_examples: int | None = None
    """Number of prompts; the source's first prompts are used. -1: all. None:
    `orchestrator.eval.num_examples`."""
    group_size: int | None = Field(None, ge=1)
    """Number of episodes for each prompt. None: `orchestrator.eval.group_size`."""

    _examples = field_validator("num_examples")(_a_number_of_examples)

    @model_validator(mode="after")
    def _no_ratio(self) -> Self:
        if "ratio" in self.model_fields_set:
            raise ValueError(
                "ratio has no effect: every source of an evaluation is played completely"
            )
        return self


class EvalConfig(BaseConfig):
    """Settings in the run file's table `[orchestrator.eval]`: evaluations before, during and after a run."""

    source: list[EvalSourceConfig] = Field(min_length=1)
    """The sources of prompts. Choose other tasks than for training, or other seeds (`taskset.first_seed`)."""
    sampling: EvalSamplingConfig = EvalSamplingConfig()
    """How the model's replies are sampled."""
    num_examples: int = -1
    """Number of prompts of each source; the first prompts are used. -1: all."""
    group_size: int = Field(1, ge=1)
    """Number of episodes for each prompt."""
    interval: int = Field(100, ge=1)
    """An evaluation follows each step whose number is a multiple of this number, and the last step. (prime-rl
    evaluates after the last step only if its number is a multiple of the interval.)"""
    skip_first_step: bool = False
    """Whether to skip the evaluation before the first step."""

    _examples = field_validator("num_examples")(_a_number_of_examples)

    @model_validator(mode="after")
    def _unique_names(self) -> Self:
        names = Counter(source.resolved_name for source in self.source)
        if twice := [name for name, count in names.items() if count > 1]:
            raise ValueError(f"two sources have the name {twice[0]!r}; set their `name`")
        return self

    def due(self, step: int, max_steps: int) -> bool:
        """Returns whether an evaluation follows training step `step`. It does if `step` is a multiple of
        `interval`, or equals `max_steps`, the run's last step. `step` 0 stands for the start of the run: an
        evaluation takes place unless `skip_first_step` is set."""
        if step == 0:
            return not self.skip_first_step
        return step % self.interval == 0 or step == max_steps
