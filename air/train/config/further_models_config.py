"""Settings of the models that some algorithms need beside the policy: reference model, value model and
teacher.

This module does not import torch, so run files can be checked without torch.
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, field_validator, model_validator

from air.config import BaseConfig, is_server
from air.train.config.model_options import AdamWConfig, OptimizerConfig


class ReferenceConfig(BaseConfig):
    """Settings in the run file's table `[embedded.reference]`: the reference model, whose predictions a KL
    term compares with those of the policy. It is loaded only if such a term is used, and it is never
    trained."""

    model: str | None = None
    """A Hugging Face hub id, or a folder. None: the model from which the policy started, `model.name`."""


class ValueModelConfig(BaseConfig):
    """Settings in the run file's table `[embedded.value_model]`: the value model of the algorithm `gae`
    (generalised advantage estimation, as in PPO).

    The value model is separate from the policy. Its linear head predicts, at each token, the rewards that are
    still to come.
    """

    model: str | None = None
    """The model whose layers the value model starts from: a hub id, or a folder. It must have the policy's
    tokenizer. None: the model from which the policy started, `model.name`."""
    optim: OptimizerConfig = AdamWConfig(lr=1e-5)
    """The optimiser of the value model; its learning rate is constant. The default learning rate is that of
    the framework verl."""
    warmup_steps: int = Field(0, ge=0)
    """Number of steps, from the start of the run, in which only the value model is trained."""
    epochs: int = Field(1, ge=1)
    """Number of times that a step trains the value model on the step's tokens; each time is one update."""
    clip: float | None = Field(0.5, gt=0)
    """Largest change of a predicted value during one step. A prediction that has changed by more is not
    trained further in this step. This matters only if `epochs` is above 1. None: no limit."""


class TeacherConfig(BaseConfig):
    """Settings in the run file's table `[orchestrator.algo.teacher]`: the model that the algorithm `opd`
    (on-policy distillation) learns from. The algorithm `sft`, whose teacher plays the episodes, has the same
    settings in the table `[orchestrator.algo.sampling.source]`, and needs `base_url`.

    The keys and defaults are those of prime-rl's `FrozenModelConfig`, but `base_url` is optional. The teacher
    must have the policy's tokenizer, because it computes log-probabilities of the policy's token ids, or
    samples token ids that the policy is trained on.
    """

    name: str
    """If `base_url` is set, the teacher's name on that server. Otherwise a Hugging Face hub id or a
    folder."""
    base_url: str | None = None
    """URL of a vLLM server, such as `http://localhost:8001/v1`, that answers `/completions` with
    `prompt_logprobs`. None: the teacher is loaded into the training process."""
    api_key_var: str = "VLLM_API_KEY"
    """Name of the environment variable that holds the server's API key."""
    headers: dict[str, str] = Field(default_factory=dict)
    """HTTP headers that are sent with every request."""
    wait_for_ready_timeout: int = Field(1800, ge=0)
    """Number of seconds that the run waits, at its start, until the server answers."""
    skip_model_check: bool = False
    """Whether to skip the check, at the start of the run, that the server lists the model `name`."""

    @field_validator("base_url")
    @classmethod
    def _is_http(cls, value: str | None) -> str | None:
        if value is not None and not is_server(value):
            raise ValueError(f"{value!r} is not the URL of a server: write http://HOST:PORT")
        return value

    @model_validator(mode="after")
    def _endpoint_keys(self) -> Self:
        extra = {"api_key_var", "headers", "wait_for_ready_timeout", "skip_model_check"}
        if self.base_url is None and (wrong := sorted(extra & self.model_fields_set)):
            raise ValueError(f"{', '.join(wrong)} concerns a server: set base_url, or remove it")
        return self
