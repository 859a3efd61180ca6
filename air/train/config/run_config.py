"""Defines the settings in a run file (TOML) of the embedded training engine.

The keys are a subset of prime-rl 0.8's `RLConfig`, with the same names and meanings, plus the table
`[embedded]` (see `air.train.config.embedded_config`). Any other key is refused, so no setting is ignored
silently.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import Field, model_validator
from renderers import RendererConfig

from air.config import BaseConfig
from air.env.config import AirTasksetConfig, check_history, measures_actions
from air.tasks.sources.mlgym.checkout import PREFIX, ROOT_VARIABLE
from air.train.algorithms import (
    AlgoConfig,
    Algorithm,
    FromRewards,
    GRPOConfig,
)
from air.train.algorithms.duration_weights import WithDurationWeights
from air.train.algorithms.kl_penalty import WithKL
from air.train.algorithms.sft import SFTAlgoConfig
from air.train.config.curriculum_config import check_curricula
from air.train.config.embedded_config import EmbeddedConfig, Inference
from air.train.config.env_source import EnvSource
from air.train.config.eval_config import EvalConfig
from air.train.config.further_models_config import (
    ReferenceConfig,
    TeacherConfig,
    ValueModelConfig,
)
from air.train.config.loss_options import (
    DefaultLossConfig,
    LossConfig,
    PolicyLossConfig,
    PPOClipLossConfig,
)
from air.train.config.model_options import (
    AdamWConfig,
    ConstantSchedulerConfig,
    LoRAConfig,
    OptimizerConfig,
    SchedulerConfig,
    check_schedule,
)
from air.train.config.monitor_options import MonitorsConfig
from air.train.config.run_name import RunNameConfig, default_name
from air.worlds.remote.splits import check_splits

AnySource = TypeVar("AnySource", bound=EnvSource)


class ModelConfig(BaseConfig):
    """Settings in the run file's table `[model]`: the model that is trained."""

    name: str = "Qwen/Qwen3-0.6B"
    """The model to train: a Hugging Face hub id, or a folder."""


class CheckpointConfig(BaseConfig):
    """Settings in the run file's table `[ckpt]`: when checkpoints are written and how many remain."""

    interval: int | None = Field(None, ge=1)
    """Number of steps between two checkpoints. None: only one checkpoint, at the end of the run."""
    keep_last: int | None = Field(None, ge=1)
    """Number of checkpoints that remain on disk, beside the best one (`embedded.best_metric`); older ones are
    deleted. None: all remain."""


class ResumeConfig(BaseConfig):
    """Settings in the run file's table `[resume]`: the checkpoint from which the run continues."""

    step: int | None = Field(None, ge=1)
    """The step of the checkpoint to continue from. None: the latest checkpoint."""


class TrainedModelConfig(BaseConfig):
    """Settings in the run file's table `[trainer.model]`: which weights of the model are trained."""

    lora: LoRAConfig | None = None
    """Settings of LoRA. None: all weights are trained."""


class TrainerConfig(BaseConfig):
    """Settings in the run file's table `[trainer]`: trained weights, optimiser, learning-rate schedule and
    loss."""

    model: TrainedModelConfig = TrainedModelConfig()
    """Which weights are trained: all weights of the model, or a LoRA adapter."""
    optim: OptimizerConfig = AdamWConfig()
    """The optimiser."""
    scheduler: SchedulerConfig = ConstantSchedulerConfig()
    """The learning-rate schedule."""
    loss: LossConfig = DefaultLossConfig()
    """The loss that is minimised. The key `type` names it."""


class SamplingConfig(BaseConfig):
    """Settings in the run file's table `[orchestrator.train.sampling]`: how the model samples replies."""

    temperature: float = Field(1.0, gt=0, le=2.0)
    """Sampling temperature. When the trainer computes log-probabilities, it divides the logits by the same
    number."""
    max_completion_tokens: int | None = Field(None, ge=1)
    """Largest number of tokens in a reply; a longer reply is cut, and its episode ends. None: only `seq_len`
    limits it."""


class SourceConfig(EnvSource, BaseConfig):
    """Settings of one source of prompts for training (tasks and their environment): a table
    `[[orchestrator.train.source]]` of a run file."""


class TrainConfig(BaseConfig):
    """Settings in the run file's table `[orchestrator.train]`: the sources of prompts for training, and how
    the model samples replies."""

    source: list[SourceConfig] = Field(min_length=1)
    """The sources of prompts; each has an environment and a weight."""
    sampling: SamplingConfig = SamplingConfig()
    """How the model's replies are sampled."""


class OrchestratorConfig(BaseConfig):
    """Settings in the run file's table `[orchestrator]`: how many episodes a step has, from which prompts
    they come, and how their rewards become advantages."""

    batch_size: int = Field(32, ge=1)
    """Number of episodes in one step. It must be a multiple of every `group_size`."""
    group_size: int = Field(8, ge=1)
    """Number of episodes for each prompt; the episodes of one prompt are a group."""
    max_off_policy_steps: int = Field(0, ge=0)
    """Largest number of weight updates between the weights that sampled a token and the weights that train on
    it. 0 (prime-rl's default: 8): sampling and training take turns. 1 or more: the episodes of the next step
    play during an update, and go on with the new weights. So a token is at most one update old, even if the
    number is larger."""
    algo: AlgoConfig = GRPOConfig()
    """The algorithm, which turns the rewards of a group into advantages. The key `type` names it."""
    train: TrainConfig
    """The sources of prompts, and how replies are sampled."""
    eval: EvalConfig | None = None
    """Evaluations before, during and after the run. None: no evaluation."""
    renderer: RendererConfig | None = None
    """The renderer, which turns chat messages into token ids. None: the renderer of the model's family."""

    @property
    def sources(self) -> list[EnvSource]:
        """All sources of prompts: first the sources for training, then the sources for evaluations."""
        return [*self.train.source, *(self.eval.source if self.eval else [])]


class RunConfig(BaseConfig):
    """All settings in a run file of the embedded training engine."""

    max_steps: int = Field(ge=1)
    """Number of steps; each step updates the weights once."""
    seq_len: int = Field(2048, ge=64)
    """Largest number of tokens in an episode. An episode ends, and is graded, before it would exceed this
    number."""
    output_dir: Path = Path("outputs")
    """The folder that contains the folders of all runs; a run's folder is `output_dir / run.name`."""
    run: RunNameConfig = RunNameConfig()
    """The name of the run."""
    model: ModelConfig = ModelConfig()
    """The model to train."""
    ckpt: CheckpointConfig | None = None
    """When checkpoints are written. None: only one checkpoint, at the end of the run."""
    resume: ResumeConfig | None = None
    """The checkpoint from which an earlier run continues. None: a new run."""
    trainer: TrainerConfig = TrainerConfig()
    """Optimiser, learning-rate schedule and loss."""
    orchestrator: OrchestratorConfig
    """The episodes of a step, and how their rewards become advantages."""
    monitors: MonitorsConfig = MonitorsConfig()
    """Where metrics are written, besides `metrics.jsonl` and TensorBoard (`embedded.tensorboard`)."""
    embedded: EmbeddedConfig = EmbeddedConfig()
    """Settings that only the embedded training engine has."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for source in self.orchestrator.train.source:
            size = source.group_size or self.orchestrator.group_size
            if self.orchestrator.batch_size % size:
                raise ValueError(
                    f"orchestrator.batch_size ({self.orchestrator.batch_size}) must be a multiple of "
                    f"the group_size ({size})"
                )
            if self.embedded.reward_to_go and getattr(source.env, "credit", "") == "segment":
                raise ValueError(
                    'embedded.reward_to_go pays turns within one trace: it needs credit = "episode"'
                )
        for each in self.orchestrator.sources:
            check_history(each.env)
        check_curricula(self.embedded.levels, self.embedded.rounds, self.orchestrator.train.source)
        if held_out := self.orchestrator.eval:
            check_splits(_task_ids(self.orchestrator.train.source), _task_ids(held_out.source))
        self._check_algorithm()
        if self.resume is not None and self.run.name is None:
            raise ValueError("resume needs run.name, the run to continue")
        self._check_deterministic()
        self._check_durations()
        check_schedule(self.trainer.scheduler, self.max_steps)
        return self

    def _check_deterministic(self) -> None:
        """Raises ValueError if `embedded.deterministic` is set together with a setting with which a run
        cannot be repeated bit by bit."""
        if not self.embedded.deterministic:
            return
        if self.embedded.inference == "vllm":
            raise ValueError(
                'embedded.deterministic needs embedded.inference = "transformers": vLLM rounds differently '
                "with each batch"
            )
        if self.orchestrator.max_off_policy_steps:
            raise ValueError(
                "embedded.deterministic needs orchestrator.max_off_policy_steps = 0: which replies the new "
                "weights sample depends on timing"
            )
        if self.sampling_source is not None:
            raise ValueError(
                'embedded.deterministic cannot be combined with orchestrator.algo.type = "sft": no seed '
                "repeats what the teacher's server samples; remove one of the two"
            )
        measured = {
            "embedded.duration_weight_cap": self.embedded.duration_weight_cap is not None,
            "time_penalty of a source's env": any(
                getattr(source.env, "time_penalty", 0) for source in self.orchestrator.sources
            ),
        }
        if used := [name for name, is_set in measured.items() if is_set]:
            raise ValueError(
                f"embedded.deterministic cannot be combined with {used[0]}: durations are measured, and "
                "differ from run to run; remove one of the two"
            )

    def _check_durations(self) -> None:
        """Raises ValueError if `embedded.duration_weight_cap` is set, but no source of prompts for training
        measures the durations of actions."""
        if self.embedded.duration_weight_cap is None:
            return
        if not any(measures_actions(source.env) for source in self.orchestrator.train.source):
            raise ValueError(
                "embedded.duration_weight_cap has no effect: no source of orchestrator.train measures the "
                'durations of actions; it needs an environment of air with harness.id = "air"'
            )

    def _check_algorithm(self) -> None:
        """Raises ValueError if a setting does not fit the run's algorithm, or would have no effect with
        it."""
        embedded, algo = self.embedded, self.orchestrator.algo
        if embedded.estimator is None:
            self._check_loss()
        if embedded.estimator is None and not algo.uses_rewards:
            self._check_without_rewards()
        if embedded.reward_to_go and getattr(algo, "length_penalty", None) is not None:
            raise ValueError(
                "orchestrator.algo.length_penalty lowers the rewards of whole episodes: remove "
                "embedded.reward_to_go, or the penalty"
            )
        self._check_kl()
        if embedded.value_model != ValueModelConfig() and "values" not in self.algorithm().needs:
            raise ValueError(
                'embedded.value_model is only for orchestrator.algo.type = "gae": remove the table, or set it'
            )
        if embedded.reference != ReferenceConfig() and embedded.kl is None:
            raise ValueError(
                "embedded.reference is only for embedded.kl: remove the table, or set embedded.kl"
            )
        default = EmbeddedConfig.model_fields["best_metric"].default
        if embedded.best_metric != default and self.orchestrator.eval is None:
            raise ValueError(
                "embedded.best_metric is a metric of evaluations: set orchestrator.eval, or remove it"
            )

    def _check_loss(self) -> None:
        """Raises ValueError if the loss (`[trainer.loss]`) cannot be used with the algorithm, or has a
        setting that the algorithm replaces."""
        algo, loss = self.orchestrator.algo, self.trainer.loss
        if algo.losses and loss.type not in algo.losses:
            raise ValueError(
                f"orchestrator.algo.type = {algo.type!r} needs trainer.loss.type = "
                f"{' or '.join(map(repr, sorted(algo.losses)))}, not {loss.type!r}"
            )
        if algo.loss is not None and loss != DefaultLossConfig():
            raise ValueError(
                f"trainer.loss has no effect with orchestrator.algo.type = {algo.type!r}, which has its own "
                "loss: remove the table"
            )
        default = PPOClipLossConfig.model_fields["clip_high"].default
        if algo.sets_clip_high and getattr(loss, "clip_high", default) != default:
            raise ValueError(
                f"trainer.loss.clip_high has no effect with orchestrator.algo.type = {algo.type!r}, which "
                "computes this bound for each group: set orchestrator.algo.clip instead"
            )

    def _check_without_rewards(self) -> None:
        """Raises ValueError if a setting that changes rewards is used. Call this only for algorithms whose
        advantages do not depend on rewards: with them, such a setting would have no effect."""
        embedded = self.embedded
        settings = {
            'embedded.kl.place = "reward"': embedded.kl is not None
            and embedded.kl.place == "reward",
            "embedded.reward_to_go": embedded.reward_to_go,
            "embedded.shuffle_rewards": embedded.shuffle_rewards,
        }
        if used := [name for name, is_set in settings.items() if is_set]:
            raise ValueError(
                f"{used[0]} has no effect with orchestrator.algo.type = {self.orchestrator.algo.type!r}, "
                "which does not learn from rewards: remove it"
                + (' or set embedded.kl.place = "loss"' if "kl" in used[0] else "")
            )

    def _check_kl(self) -> None:
        """Raises ValueError if the algorithm cannot be used with the penalty for the KL divergence from the
        reference model (`[embedded.kl]`), or if the penalty cannot be computed."""
        kl, algo = self.embedded.kl, self.orchestrator.algo
        in_reward = kl is not None and kl.place == "reward"
        if self.embedded.estimator is None and in_reward and not algo.penalties_in_reward:
            raise ValueError(
                f"orchestrator.algo.type = {algo.type!r} divides by the mean reward, which a penalty would "
                'change: set embedded.kl.place = "loss"'
            )
        if in_reward and kl is not None and kl.estimator == "full" and self.overlaps:
            raise ValueError(
                'embedded.kl.estimator = "full" in the reward needs orchestrator.max_off_policy_steps = 0: '
                "the weights that sampled a reply may be gone when the penalty is computed"
            )

    def named(self) -> RunConfig:
        """Returns this config if `run.name` is set. Otherwise returns a copy with a new `run.name`, which
        consists of the date, the tasks, the model and a random part."""
        if self.run.name is not None:
            return self
        played: list[str] = []
        for source in self.orchestrator.train.source:
            played += getattr(source.env.taskset, "tasks", None) or [source.resolved_name]
        name = default_name(played, self.model.name)
        return self.model_copy(update={"run": RunNameConfig(name=name)})

    def with_checkout(self) -> RunConfig:
        """Returns a copy of this config in which each source of prompts with MLGym tasks names its checkout
        (the folder of a cloned MLGym repository), so that a resumed run uses the same folder. For a source
        that names none, this is the path in the environment variable `AIR_MLGYM_ROOT`, if the variable is
        set."""
        root = os.environ.get(ROOT_VARIABLE)
        sources = [_with_checkout(one, root) for one in self.orchestrator.train.source]
        tables: dict[str, Any] = {
            "train": self.orchestrator.train.model_copy(update={"source": sources})
        }
        if held_out := self.orchestrator.eval:
            evaluated = [_with_checkout(one, root) for one in held_out.source]
            tables["eval"] = held_out.model_copy(update={"source": evaluated})
        orchestrator = self.orchestrator.model_copy(update=tables)
        return self.model_copy(update={"orchestrator": orchestrator})

    def with_inference(self, inference: Inference) -> RunConfig:
        """Returns a copy of this config in which `embedded.inference`, the name of the program that samples
        replies, is `inference`."""
        embedded = self.embedded.model_copy(update={"inference": inference})
        return self.model_copy(update={"embedded": embedded})

    def algorithm(self) -> Algorithm:
        """Returns a new object of the run's algorithm: the user's estimator (`[embedded.estimator]`) if there
        is one, else `orchestrator.algo`. If `[embedded.kl]` is set, the object also computes the penalty for
        the KL divergence. If `embedded.duration_weight_cap` is set, it finally weights the advantages by the
        execution times of actions."""
        own, kl = self.embedded.estimator, self.embedded.kl
        algorithm = self.orchestrator.algo.build() if own is None else FromRewards(own.load())
        algorithm = algorithm if kl is None else WithKL(algorithm, kl)
        cap = self.embedded.duration_weight_cap
        return algorithm if cap is None else WithDurationWeights(algorithm, cap)

    @property
    def loss(self) -> PolicyLossConfig:
        """The settings of the loss: the algorithm's own loss if it has one (see `AlgorithmConfig.loss`), else
        `trainer.loss`."""
        own = None if self.embedded.estimator is not None else self.orchestrator.algo.loss
        return self.trainer.loss if own is None else own

    @property
    def sampling_source(self) -> TeacherConfig | None:
        """The settings of the model on another server that plays the episodes for training, in place of the
        policy; None if the policy plays them. Only the algorithm `sft` has such a model."""
        algo = self.orchestrator.algo
        if self.embedded.estimator is not None or not isinstance(algo, SFTAlgoConfig):
            return None
        return algo.sampling.source

    @property
    def trains_zero_advantages(self) -> bool:
        """Whether sampled tokens with advantage 0 are trained, because the loss has terms that do not depend
        on the advantage."""
        kl = self.embedded.kl
        in_loss = kl is not None and kl.place == "loss"
        return in_loss or self.loss.entropy_coefficient > 0

    @property
    def rewards_at_turns(self) -> bool:
        """Whether each turn (a reply of the model) is credited with its own reward and the rewards of later
        turns. If false, all turns of an episode or segment are credited with its whole reward."""
        sources = self.orchestrator.train.source
        by_segment = any(getattr(source.env, "credit", "") == "segment" for source in sources)
        wanted = self.embedded.reward_to_go or self.algorithm().rewards_at_turns
        return wanted and not by_segment

    @property
    def overlaps(self) -> bool:
        """Whether the episodes of the next step play during an update of the weights."""
        return self.orchestrator.max_off_policy_steps > 0

    @property
    def staleness_note(self) -> str:
        """A line that tells the user that a larger `max_off_policy_steps` than 1 changes nothing; empty if
        the setting is at most 1."""
        steps = self.orchestrator.max_off_policy_steps
        if steps <= 1:
            return ""
        return (
            f"orchestrator.max_off_policy_steps = {steps} has the same effect as 1: in the embedded engine, "
            "a token is at most one update old when it is trained"
        )

    @property
    def seeds_requests(self) -> bool:
        """Whether requests for replies to the inference server carry seeds. Requests to vLLM carry none,
        because vLLM would draw the same numbers in every turn of an episode. Call this only after
        `with_inference`: `embedded.inference` must not be `auto`."""
        return self.embedded.inference == "transformers"

    @property
    def uses_process_boxes(self) -> bool:
        """Whether a source of prompts runs its episodes in process boxes: sandboxes that are plain processes,
        which isolate less than containers."""
        envs = (source.env for source in self.orchestrator.sources)
        return any(getattr(env, "provider", "") == "process" for env in envs)

    @property
    def folder(self) -> Path:
        """The path of the run's folder, `output_dir / run.name`; `run.name` must be set (see `named`)."""
        assert self.run.name is not None
        return self.output_dir.expanduser() / self.run.name


def _task_ids(sources: Iterable[EnvSource]) -> list[str]:
    """Returns the ids of all tasks in `sources` that air provides, in the order of the sources. Sources with
    tasks of other packages are skipped."""
    tasksets = [source.env.taskset for source in sources]
    return [
        task
        for taskset in tasksets
        if isinstance(taskset, AirTasksetConfig)
        for task in taskset.tasks
    ]


def _with_checkout(source: AnySource, root: str | None) -> AnySource:
    taskset = source.env.taskset
    if not root or not isinstance(taskset, AirTasksetConfig) or taskset.mlgym_root is not None:
        return source
    if not any(task.startswith(PREFIX) for task in taskset.tasks):
        return source
    named = taskset.model_copy(update={"mlgym_root": Path(root).expanduser().absolute()})
    return source.model_copy(update={"env": source.env.model_copy(update={"taskset": named})})
