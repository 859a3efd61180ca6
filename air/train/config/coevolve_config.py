"""Defines the settings in a file (TOML) of the command `air coevolve`: rounds of proposer and executor."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from air.config import BaseConfig
from air.rewards.proposals.agreement import Definition
from air.rewards.proposals.novelty import MOST_TEXTS
from air.train.config.run_config import RunNameConfig
from air.worlds.proposals.proposer import INSTRUCTIONS, LEAST, MOST


class SideConfig(BaseConfig):
    """Settings in the tables `[proposer]` and `[executor]`: a model, and how each round trains it."""

    model: str
    """The model of the first round: a Hugging Face hub id, or a folder."""
    run_files: list[Path] = Field(min_length=1)
    """The run files (TOML) of `rl` with the settings of each training; a later one wins. They have one source
    of prompts, whose tasks are replaced. A path `configs/…` also finds air's own files."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Keys of run files that win over `run_files`, such as `max_steps`."""
    frozen: bool = False
    """Whether the model is never trained, as in a control experiment."""


class AnswersConfig(BaseConfig):
    """Settings in the table `[answers]`: how the executor answers proposed questions."""

    k: int = Field(10, ge=2, le=64)
    """The number of answers to each question."""
    temperature: float = Field(1.0, ge=0, le=2.0)
    """The sampling temperature."""
    max_tokens: int = Field(1024, ge=1)
    """The longest reply in tokens."""
    max_turns: int = Field(1, ge=1, le=64)
    """The largest number of turns in one answer. Each call of a tool takes one."""
    tools: tuple[str | dict[str, Any], ...] = ()
    """The executor's tools: when proposals are answered, in its training, and on held-out questions. Names,
    functions as `FILE.py:NAME` or `MODULE:NAME`, or tables with the key `name` and settings. Relative paths
    begin at the current folder."""

    @model_validator(mode="after")
    def _turns_suffice(self) -> Self:
        if self.tools and self.max_turns < 2:
            raise ValueError(
                "with tools, max_turns must be at least 2: one turn for a call, one for the answer"
            )
        return self


class PaymentConfig(BaseConfig):
    """Settings in the table `[payment]`: what proposals are paid (`air.rewards.proposals.payment`)."""

    reward: Definition = "as_coded"
    """The definition of the reward and of p̂ in the proposer's training: `as_coded` or `published`."""
    uncertainty: float = Field(1.0, ge=0, allow_inf_nan=False)
    """The factor of the uncertainty."""
    tool: float = Field(1.0, ge=0, allow_inf_nan=False)
    """The factor of the payment for tool calls."""
    repetition: float = Field(1.0, ge=0, allow_inf_nan=False)
    """The factor of the deduction for similar proposals. 0: copies cost nothing (an ablation)."""
    window: int = Field(128, ge=1, le=MOST_TEXTS)
    """The number of latest proposals with which each proposal is compared: the proposer's `batch_size`."""
    least_valid: float = Field(0.5, ge=0, le=1)
    """If a smaller share of the replies to a question has a readable answer, the question counts as p̂ =
    0."""
    instructions: str = INSTRUCTIONS
    """The instructions that the proposer gets in its prompt."""
    longest: int = Field(4000, ge=1, le=4000)
    """The largest number of characters of a question."""


class GenerationConfig(BaseConfig):
    """Settings in the table `[generation]`: the questions on which the executor is trained."""

    proposals: int = Field(256, ge=1)
    """The number of proposals that are sampled in each round."""
    temperature: float = Field(1.0, ge=0, le=2.0)
    """The sampling temperature of the proposer."""
    least: float = Field(LEAST, ge=0, le=1)
    """The smallest p̂ of a question that is kept."""
    most: float = Field(MOST, ge=0, le=1)
    """The largest p̂ of a question that is kept."""
    definition: Definition = "published"
    """The definition of p̂ in the filter. `published` does not ask whether the proposer agrees."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.least > self.most:
            raise ValueError("least is larger than most; exchange them")
        return self


class HeldOutConfig(BaseConfig):
    """Settings in the table `[held_out]`: the questions with known answers that measure the executor."""

    data: Path
    """A JSON-lines file of rows `{"question": …, "answer": …}`. Proposals that equal one of these questions
    are not trained on."""
    episodes: int = Field(200, ge=1)
    """The number of episodes after each round. They take the rows in turn."""
    temperature: float = Field(0.0, ge=0, le=2.0)
    """The sampling temperature."""


class CoevolveConfig(BaseConfig):
    """All settings in a file of the command `air coevolve`."""

    name: str = "coevolve"
    """The name of the co-evolution; its folder is `output_dir / name`."""
    output_dir: Path = Path("outputs")
    """The folder that contains the co-evolution's folder."""
    rounds: int = Field(4, ge=1, le=1000)
    """The number of rounds. A finished co-evolution may go on with a larger number."""
    seed: int = Field(0, ge=0)
    """The seed of all trainings and samples."""
    proposer: SideConfig
    """The model that proposes questions, and its training."""
    executor: SideConfig
    """The model that answers, and its training."""
    answers: AnswersConfig = AnswersConfig()
    """How the executor answers proposed questions."""
    payment: PaymentConfig = PaymentConfig()
    """What proposals are paid."""
    generation: GenerationConfig = GenerationConfig()
    """Which questions the executor is trained on."""
    held_out: HeldOutConfig
    """How the executor is measured."""

    @field_validator("name")
    @classmethod
    def _names_a_folder(cls, value: str) -> str:
        RunNameConfig(name=value)
        return value

    @property
    def folder(self) -> Path:
        """The path of the co-evolution's folder, `output_dir / name`."""
        return self.output_dir.expanduser() / self.name
