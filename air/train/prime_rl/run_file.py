"""Reads and checks a prime-rl run file (TOML), without an installed prime-rl.

The classes in this module have only the keys that air needs to plan GPUs, boxes (agents' sandboxes) and time.
All keys of the file are compared with a recorded schema (`air.train.prime_rl.schema`). Rules between several
keys are not checked here, but by prime-rl.
"""

from __future__ import annotations

import os
from typing import Any, Literal

import verifiers.v1 as vf
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from air.config import first_problem
from air.env.config import ResearchEnvConfig, check_history
from air.errors import ConfigError
from air.train.config.env_source import EnvSource
from air.train.config.overrides import MergedSettings
from air.train.prime_rl import schema
from air.train.prime_rl.gpu_placement import GpuRequest


class _TableView(BaseModel):
    """Base class of classes for one TOML table of a prime-rl run file. A subclass has the keys that air
    reads; other keys in the table are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)


class DeploymentView(_TableView):
    """The keys that air reads from prime-rl's table `[deployment]`: the number of machines and GPUs."""

    type: Literal["single_node", "multi_node"] = "single_node"
    gpus_per_node: int = 8
    num_train_gpus: int = 1
    num_infer_gpus: int = 1


class WeightsView(_TableView):
    """The keys that air reads from prime-rl's table `[weight_broadcast]`: how new weights are distributed."""

    type: str


class TrainerModelView(_TableView):
    """The keys that air reads from prime-rl's table `[trainer.model]`: settings of the trained model."""

    lora: dict[str, Any] | None = None


class TrainerView(_TableView):
    """The keys that air reads from prime-rl's table `[trainer]`: settings of the trainer."""

    model: TrainerModelView = TrainerModelView()


class VllmView(_TableView):
    """The keys that air reads from prime-rl's table `[inference.vllm]`: settings of vLLM."""

    max_model_len: int | None = None


class InferenceView(_TableView):
    """The keys that air reads from prime-rl's table `[inference]`: settings of the inference servers."""

    vllm: VllmView = VllmView()


class SlurmView(_TableView):
    """The keys that air reads from prime-rl's table `[slurm]`: settings of a run on a SLURM cluster."""

    template_path: str | None = None


class SourceView(EnvSource, _TableView):
    """The keys that air reads for one source of prompts (an environment with its tasks) in a prime-rl run
    file: one table `[[orchestrator.train.source]]` or `[[orchestrator.eval.source]]`."""

    serve: vf.ServeConfig = vf.ServeConfig()

    @property
    def elsewhere(self) -> bool:
        """Whether the episodes of this source run on another machine. This is so if the setting
        `serve.address` is given."""
        return self.serve.address is not None


class SamplingView(_TableView):
    """The keys that air reads from prime-rl's table `[orchestrator.train.sampling]`: limits on the length of
    replies."""

    max_completion_tokens: int | None = None


class TrainView(_TableView):
    """The keys that air reads from prime-rl's table `[orchestrator.train]`: the sources of prompts for
    training, and sampling."""

    source: list[SourceView] = Field(min_length=1)
    sampling: SamplingView = SamplingView()


class EvalView(_TableView):
    """The keys that air reads from prime-rl's table `[orchestrator.eval]`: sources of evaluation prompts."""

    source: list[SourceView] = []


class ConcurrencyView(_TableView):
    """The keys that air reads from prime-rl's table `[orchestrator.concurrency]`: the largest number of
    concurrent episodes."""

    max_inflight: int | None = 1024


class OrchestratorView(_TableView):
    """The keys that air reads from prime-rl's table `[orchestrator]`: sources of prompts, and the numbers of
    episodes in a training step and in a group (several episodes of the same prompt)."""

    train: TrainView
    eval: EvalView | None = None
    batch_size: int | None = None
    token_batch_size: int | None = None
    group_size: int = 1
    max_off_policy_steps: int = 8
    concurrency: ConcurrencyView = ConcurrencyView()


class PrimeView(_TableView):
    """All keys that air reads from a prime-rl run file (TOML)."""

    max_steps: int | None = None
    seq_len: int | None = None
    output_dir: str = "outputs"
    deployment: DeploymentView = DeploymentView()
    weight_broadcast: WeightsView | None = None
    trainer: TrainerView
    inference: InferenceView | None = None
    slurm: SlurmView | None = None
    orchestrator: OrchestratorView

    @property
    def sources(self) -> list[SourceView]:
        """The settings of the run's sources of prompts (each is an environment with tasks): first those of
        all sources for training, then those of all sources for evaluation."""
        evaluated = self.orchestrator.eval.source if self.orchestrator.eval else []
        return [*self.orchestrator.train.source, *evaluated]

    @property
    def eval_sources_with_training_seeds(self) -> list[str]:
        """The names of the evaluation sources whose worlds (games and other environments) would get the seeds
        of the training, so that the evaluation would repeat training episodes. The run file must set `purpose
        = "evaluation"` for them, because prime-rl does not tell an environment that it is used for an
        evaluation."""
        evaluated = self.orchestrator.eval.source if self.orchestrator.eval else []
        return [source.resolved_name for source in evaluated if _uses_training_seeds(source.env)]

    @property
    def broadcast(self) -> str:
        """How new weights get from the trainer to the inference servers, such as `nccl` or `filesystem`: the
        value of the setting `weight_broadcast.type` or, if it is not set, prime-rl's default."""
        if self.weight_broadcast is not None:
            return self.weight_broadcast.type
        lora = self.trainer.model.lora is not None
        return "filesystem" if lora or self.inference is None else "nccl"


def read(merged: MergedSettings) -> PrimeView:
    """Checks the settings of a run with prime-rl, and returns those keys that air reads. `merged` has the
    settings of the run files and of the command line. Raises ConfigError, which names the file and the key,
    if prime-rl has no such key, a value has a wrong type, a setting of an environment cannot be used, or two
    limits on the number of tokens contradict each other."""
    where = str(merged.files[-1]) if merged.files else "command line"
    schema.check(merged.data, "rl", where=where)
    try:
        view = PrimeView.model_validate(merged.data)
        for source in view.orchestrator.train.source:
            check_history(source.env)
    except ValidationError as error:
        bad = first_problem(error, merged.data)
        message = f"`{bad.name}`: no such key; check its spelling" if bad.unknown else bad.message
        raise ConfigError(message, where=merged.where(bad.path)) from None
    _check_lengths(view, where)
    return view


def gpu_request(view: PrimeView) -> GpuRequest:
    """Returns the settings in a run file that say which GPUs of this machine the run gets.
    Ignores sources of prompts whose episodes run on another machine. Raises ConfigError if two sources name
    different GPUs for inference, or for the trainer."""
    here = [s.env for s in view.sources if not s.elsewhere]
    envs = [env for env in here if isinstance(env, ResearchEnvConfig)]
    return GpuRequest(
        num_infer=view.deployment.num_infer_gpus if view.inference is not None else 0,
        num_train=view.deployment.num_train_gpus,
        inference=_same("inference_gpus", [env.inference_gpus for env in envs]),
        trainer=_same("trainer_gpus", [env.trainer_gpus for env in envs]),
        boxes=tuple(env.gpus for env in envs if env.gpus),
    )


def _uses_training_seeds(env: Any) -> bool:
    if not isinstance(env, ResearchEnvConfig):
        return False
    taskset: Any = env.taskset
    return bool(taskset.worlds) and taskset.purpose == "training"


def _same(key: str, settings: list[list[str]]) -> tuple[str, ...]:
    """Returns the common value of the setting `key` in all sources of prompts, or an empty tuple if no source
    sets it. `settings` has the value in each source; an empty list means that the source does not set it.
    Raises ConfigError if two sources set different values."""
    different = {tuple(names) for names in settings if names}
    if len(different) > 1:
        raise ConfigError(
            f"sources disagree: {' and '.join(', '.join(names) for names in sorted(different))}",
            where=key,
            remedy="set the same value in each source",
        )
    return different.pop() if different else ()


def _check_lengths(view: PrimeView, where: str) -> None:
    longest = view.orchestrator.train.sampling.max_completion_tokens
    served = view.inference.vllm.max_model_len if view.inference else None
    if longest is not None and view.seq_len is not None and longest >= view.seq_len:
        raise ConfigError(
            f"one reply may have {longest} tokens and a whole episode {view.seq_len}",
            where=where,
            remedy="lower orchestrator.train.sampling.max_completion_tokens, or raise seq_len",
        )
    if served is not None and view.seq_len is not None and served > view.seq_len:
        raise ConfigError(
            f"episodes may have {served} tokens (inference.vllm.max_model_len), of which the trainer sees "
            f"{view.seq_len} (seq_len)",
            where=where,
            remedy="make them equal",
        )


def visible_devices() -> list[str] | None:
    """Returns the names (indices or UUIDs) of GPUs in the environment variable `CUDA_VISIBLE_DEVICES`, or
    None if it is not set."""
    text = os.environ.get("CUDA_VISIBLE_DEVICES")
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]
