"""Defines the settings in a file (TOML) of the command `air coevolve`.

A co-evolution trains two models in rounds: a proposer, which writes questions, and an executor, which answers
each question k times. A proposal is a question with the proposer's own answer. p̂ of a question is the share
of the executor's k answers that equal the most frequent answer; it is 0 in the cases that the settings
`least_valid` and `definition` describe.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from air.config import BaseConfig
from air.rewards.proposals.agreement import Definition, Equality
from air.rewards.proposals.novelty import MOST_TEXTS
from air.train.config.embedded_config import ComputeConfig
from air.train.config.run_name import RunNameConfig
from air.worlds.proposals.proposer import INSTRUCTIONS, LEAST, MOST


class SideConfig(BaseConfig):
    """Settings in the tables `[proposer]` and `[executor]` of a co-evolution: a model, and how the model is
    trained in each round."""

    model: str
    """The model of the first round: a Hugging Face hub id, or a folder."""
    run_files: list[Path] = Field(min_length=1)
    """The run files (TOML) of `rl` with the settings of each training; a later file overrides earlier ones.
    Together they must define exactly one source of prompts; its tasks are replaced in each round by those of
    the co-evolution. They may not set the folder, the name, the seed or the resumption of a run, which the
    co-evolution sets. If a path `configs/…` does not exist, air's own file of this name is read."""
    engine: Literal["auto", "embedded", "prime-rl"] = "auto"
    """The engine that trains this model. `auto`: prime-rl if the run files have a table `[inference]` or
    `[deployment]` and none `[embedded]`; otherwise the embedded engine. prime-rl needs GPUs, and its sampling
    has no seed, so its trainings cannot be repeated exactly."""
    compute: ComputeConfig | None = None
    """How this machine computes with the model when it plays outside a training, if prime-rl trains it: the
    same keys as in the table `[embedded]` of a run file. The embedded engine takes them from that table, so
    this table must then be left out."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings that override those of `run_files`, with the same tables and keys, such as `max_steps`."""
    frozen: bool = False
    """Whether this model is left untrained, so that it is the same in all rounds, for example in a control
    experiment."""


class AnswersConfig(BaseConfig):
    """Settings in the table `[answers]` of a co-evolution: how the executor (the model that answers
    questions) answers the questions that the proposer (the other model) wrote."""

    k: int = Field(10, ge=2, le=64)
    """The number of answers that the executor gives to each question."""
    temperature: float = Field(1.0, ge=0, le=2.0)
    """The sampling temperature of the executor."""
    max_tokens: int = Field(1024, ge=1)
    """The largest number of tokens in a reply of the executor; a longer reply is cut."""
    max_turns: int = Field(1, ge=1, le=64)
    """The largest number of turns in one answer. Each tool call takes one turn, and so does the answer
    itself."""
    tools: tuple[str | dict[str, Any], ...] = ()
    """The tools that the executor may call when it answers proposals, when it is trained, and when it answers
    held-out questions. A tool is a name, a function as `FILE.py:NAME` or `MODULE:NAME`, or a table with the
    key `name` and the tool's settings. Relative paths start at the current folder."""
    equality: Equality = "math"
    """The rule by which two answers are equal, in p̂ and its majority, in the executor's training, and on
    held-out questions: `math`, by the checker of mathematical answers, or `forms`, only by canonical forms,
    which is faster: `0.5` equals `1/2`, but `2x` does not equal `x*2`."""

    @model_validator(mode="after")
    def _turns_suffice(self) -> Self:
        if self.tools and self.max_turns < 2:
            raise ValueError(
                "with tools, max_turns must be at least 2: one turn for a call, one for the answer"
            )
        return self


class PaymentConfig(BaseConfig):
    """Settings in the table `[payment]` of a co-evolution: how the reward of a proposal (a question that the
    proposer wrote, with its own answer) is computed (see `air.rewards.proposals.proposer_reward`)."""

    reward: Definition = "as_coded"
    """The definition of the reward and of p̂ in the proposer's training: `as_coded` (as in Agent0's code) or
    `published` (as in its paper). p̂ is the share of the executor's answers to a question that equal the most
    frequent answer."""
    uncertainty: float = Field(1.0, ge=0, allow_inf_nan=False)
    """The factor of the reward term for uncertainty, which is largest at p̂ = ½. p̂ is the share of the
    executor's answers to a question that equal the most frequent answer."""
    tool: float = Field(1.0, ge=0, allow_inf_nan=False)
    """The factor of the reward term for tool calls. With the definition `published`, the executor's calls
    count. With `as_coded`, the proposer's calls would count, but the proposer has no tools, so the term is
    0."""
    repetition: float = Field(1.0, ge=0, allow_inf_nan=False)
    """The factor of the deduction for similar proposals. 0: copies cost nothing (an ablation)."""
    window: int = Field(128, ge=1, le=MOST_TEXTS)
    """The number of latest proposals with which each new proposal is compared to find similar ones. It should
    equal the `batch_size` of the proposer's training."""
    least_valid: float = Field(0.5, ge=0, le=1)
    """The smallest share of the answers to a question that must be readable (the reply has an answer that is
    not too long). With fewer readable answers, p̂ of the question is 0. p̂ is the share of the executor's
    answers that equal the most frequent answer."""
    instructions: str = INSTRUCTIONS
    """The instructions that the proposer gets in its prompt."""
    longest: int = Field(4000, ge=1, le=4000)
    """The largest number of characters of a question. A proposal with a longer question is malformed."""


class GenerationConfig(BaseConfig):
    """Settings in the table `[generation]` of a co-evolution: the questions that the proposer writes for the
    executor's training, and which of them are used."""

    proposals: int = Field(256, ge=1)
    """The number of proposals that are sampled in each round."""
    temperature: float = Field(1.0, ge=0, le=2.0)
    """The sampling temperature of the proposer."""
    least: float = Field(LEAST, ge=0, le=1)
    """The smallest p̂ of a question on which the executor is trained. p̂ is the share of the executor's
    answers to the question that equal the most frequent answer."""
    most: float = Field(MOST, ge=0, le=1)
    """The largest p̂ of a question on which the executor is trained. p̂ is the share of the executor's
    answers to the question that equal the most frequent answer."""
    definition: Definition | None = None
    """The definition of p̂ for `least` and `most`. `published`: the share of the executor's answers that
    equal the most frequent answer. `as_coded`: the same share, but 0 if the most frequent answer differs from
    the proposer's own answer, or if the share is at most 0.1. None: that of `payment.reward`, so that p̂ means
    the same everywhere."""
    rows: int | None = Field(None, ge=1)
    """The largest number of questions on which the executor is trained in a round: the first that qualify, in
    the order of the proposals. None: no limit."""

    def definition_with(self, payment: PaymentConfig) -> Definition:
        """Returns the definition of p̂ for `least` and `most`: `definition`, or that of `payment` if it is
        None."""
        return self.definition or payment.reward

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.least > self.most:
            raise ValueError("least is larger than most; exchange them")
        return self


class HeldOutConfig(BaseConfig):
    """Settings in the table `[held_out]` of a co-evolution: questions with known answers. After each round,
    the executor (the model that answers questions) is evaluated on them."""

    data: Path
    """A JSON-lines file of rows `{"question": …, "answer": …}`; a relative path starts at the current folder.
    The executor is never trained on a proposal with the same words as one of these questions."""
    episodes: int = Field(200, ge=1)
    """The number of episodes after each round. Each episode asks one row; after the last row, the first row
    follows again."""
    temperature: float = Field(0.0, ge=0, le=2.0)
    """The sampling temperature of the executor."""


class CoevolveConfig(BaseConfig):
    """All settings in a file of the command `air coevolve`, which trains two models in rounds: a proposer,
    which writes questions, and an executor, which answers them."""

    name: str = "coevolve"
    """The name of the co-evolution; its folder is `output_dir / name`."""
    output_dir: Path = Path("outputs")
    """The folder that contains the co-evolution's folder."""
    rounds: int = Field(4, ge=0, le=1000)
    """The number of rounds after round 0, which trains nothing and measures both models. To continue a
    finished co-evolution, set a larger number."""
    seed: int = Field(0, ge=0)
    """The seed of all trainings and of all sampled replies."""
    proposer: SideConfig
    """The model that proposes questions, and the settings of its training."""
    executor: SideConfig
    """The model that answers questions, and the settings of its training."""
    answers: AnswersConfig = AnswersConfig()
    """How the executor answers proposed questions."""
    payment: PaymentConfig = PaymentConfig()
    """How the reward of a proposal is computed."""
    generation: GenerationConfig = GenerationConfig()
    """Which questions the executor is trained on."""
    held_out: HeldOutConfig
    """The questions with known answers on which the executor is evaluated after each round."""

    @field_validator("name")
    @classmethod
    def _names_a_folder(cls, value: str) -> str:
        RunNameConfig(name=value)
        return value

    @property
    def folder(self) -> Path:
        """The path of the co-evolution's folder, `output_dir / name`."""
        return self.output_dir.expanduser() / self.name
