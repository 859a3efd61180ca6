"""Defines the settings in a run file (TOML) of the embedded training engine.

The keys are a subset of prime-rl 0.8's `RLConfig`, with the same names and meanings, plus the table
`[embedded]`. Any other key is refused, so no setting is ignored silently.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import Field, field_validator, model_validator
from renderers import RendererConfig

from air.config import BaseConfig
from air.env.config import AirTasksetConfig, check_history, measures_actions
from air.tasks.sources.mlgym.checkout import PREFIX, ROOT_VARIABLE
from air.train.algorithms import (
    AlgoConfig,
    Algorithm,
    Estimator,
    FromRewards,
    GRPOConfig,
    imported,
)
from air.train.algorithms.duration_weights import WithDurationWeights
from air.train.algorithms.kl_penalty import WithKL
from air.train.config.curriculum_config import LevelsConfig, RoundsConfig, check_curricula
from air.train.config.env_source import EnvSource
from air.train.config.eval_config import EvalConfig
from air.train.config.further_models_config import ReferenceConfig, ValueModelConfig
from air.train.config.loss_options import DefaultLossConfig, KLConfig, LossConfig
from air.train.config.model_options import (
    AdamWConfig,
    ConstantSchedulerConfig,
    LoRAConfig,
    OptimizerConfig,
    SchedulerConfig,
    check_schedule,
)
from air.train.config.monitor_options import MonitorsConfig

AnySource = TypeVar("AnySource", bound=EnvSource)

Inference = Literal["auto", "vllm", "transformers"]
_NAMED_TASKS = 3
"""Largest number of task ids in a run's default name. Further tasks appear there as a number, `N-more`."""


class ModelConfig(BaseConfig):
    """Settings in the run file's table `[model]`: the model that is trained."""

    name: str = "Qwen/Qwen3-0.6B"
    """The model to train: a Hugging Face hub id, or a folder."""


class RunNameConfig(BaseConfig):
    """Settings in the run file's table `[run]`: the name of the run."""

    name: str | None = None
    """The name of the run; its folder is `output_dir / name`. None: a new name from the date, the tasks and
    the model, with a random part."""

    @field_validator("name")
    @classmethod
    def _stays_below_output_dir(cls, value: str | None) -> str | None:
        parts = [] if value is None else value.split("/")
        if value is not None and ("\0" in value or {"", ".", ".."} & set(parts)):
            raise ValueError(
                f"{value!r} is not a name in the folder of runs; --output-dir sets this folder"
            )
        return value


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
    """Settings in the run file's table `[trainer]`: what is trained, optimiser, schedule and loss."""

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
    """Sampling temperature. The trainer divides the logits by the same number."""
    max_completion_tokens: int | None = Field(None, ge=1)
    """Longest reply in tokens; a longer reply is cut, and its episode ends. None: only `seq_len` limits
    it."""


class SourceConfig(EnvSource, BaseConfig):
    """Settings of one source of prompts and its environment: a table `[[orchestrator.train.source]]`."""


class TrainConfig(BaseConfig):
    """Settings in the run file's table `[orchestrator.train]`: sources of prompts, and sampling."""

    source: list[SourceConfig] = Field(min_length=1)
    """The sources of prompts; each has an environment and a weight."""
    sampling: SamplingConfig = SamplingConfig()
    """How the model's replies are sampled."""


class OrchestratorConfig(BaseConfig):
    """Settings in the run file's table `[orchestrator]`: episodes, groups and advantages."""

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


class EstimatorConfig(BaseConfig):
    """Settings in the run file's table `[embedded.estimator]`: a user's advantage estimator.
    An advantage estimator is a function that turns the rewards of a group of episodes into advantages."""

    import_path: str
    """The advantage estimator: a function, as `module:name`, such as `my_lab:leave_one_out`. Python must be
    able to import it."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the advantage estimator, which is called as `function(rewards, **kwargs)`."""

    @field_validator("import_path")
    @classmethod
    def _importable(cls, value: str) -> str:
        imported.find(value)
        return value

    @model_validator(mode="after")
    def _callable(self) -> Self:
        imported.check_kwargs(self.import_path, self.kwargs)
        return self

    def load(self) -> Estimator:
        """Imports the user's function, and returns an estimator that calls this function with `kwargs`."""
        return imported.load(self.import_path, self.kwargs)


def usable_cores() -> int:
    """Returns the number of CPU cores that this process may use. If the environment variable OMP_NUM_THREADS
    is set, its value is returned instead."""
    wanted = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    if wanted.isdigit() and int(wanted):
        return int(wanted)
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    return len(affinity(0)) if affinity else os.cpu_count() or 1


class ComputeConfig(BaseConfig):
    """Settings in the table `[embedded]` for all training on this machine, including the command `sft`."""

    threads: int | None = Field(None, ge=1)
    """Number of CPU threads that torch uses. None: torch uses all cores for training and half of the cores
    for sampling, because boxes need cores, too. (Threads that wait for each other on busy cores are many
    times slower than one thread.) If episodes play during updates, training also uses half. The number of
    cores is what the process may use, or the environment variable OMP_NUM_THREADS. If other work keeps the
    machine busy, set 1."""
    micro_batch_tokens: int = Field(8192, ge=1)
    """Largest number of tokens, including padding, in one forward and backward pass."""

    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    """Where the model is held and trained: `cpu`, `cuda` (the first free GPU) or `cuda:N` (N as in
    `nvidia-smi`). `auto`: a GPU that torch can use and no box holds. If there is none, or the only GPU is too
    small for both vLLM and the policy, `auto` means the CPU. The engine leases its GPU, so no box gets it."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of the model's weights. `auto`: bfloat16 on a GPU, float32 on the CPU. In bfloat16 the optimiser
    keeps float32 copies of trained weights, because small updates would be lost in rounding."""
    attention: Literal["auto", "sdpa", "eager"] = "auto"
    """How attention is computed: `sdpa` (torch's fused attention) or `eager` (slower, more memory). `auto`:
    `sdpa` if the model's family supports it, else `eager`."""
    gradient_checkpointing: bool = False
    """Whether the backward pass computes the results of layers again, so that they need not be kept in
    memory. It saves most of the memory of training on long sequences, and costs one more forward pass."""

    def set_threads(self) -> None:
        """Sets the number of CPU threads that torch uses while boxes run commands: the setting `threads`, or
        half of the cores. Call this method before any other thread uses torch."""
        import torch

        torch.set_num_threads(self.threads or max(1, usable_cores() // 2))

    @contextmanager
    def training_threads(self) -> Iterator[None]:
        """Context manager: inside the block, torch uses the number of CPU threads in the setting `threads`,
        or as many as there are cores. Use it only for work during which no reply is sampled and no box runs a
        command."""
        import torch

        before = torch.get_num_threads()
        torch.set_num_threads(self.threads or usable_cores())
        try:
            yield
        finally:
            torch.set_num_threads(before)


class EmbeddedConfig(ComputeConfig):
    """Settings in the run file's table `[embedded]`, which only the embedded training engine reads."""

    inference: Inference = "auto"
    """The program that samples replies: `vllm` (a vLLM process) or `transformers` (the training process
    itself). `auto`: vLLM if it is installed and there is a GPU. The flag `--inference` sets the same."""
    inference_start_seconds: float = Field(600.0, gt=0)
    """Largest number of seconds that vLLM may take to start."""
    port: int = Field(0, ge=0, le=65535)
    """Port of the inference server on the loopback interface. 0: any free port."""
    max_batch: int = Field(64, ge=1)
    """Largest number of replies that are generated at the same time."""
    prefix_cache_mb: float | None = Field(None, ge=0, allow_inf_nan=False)
    """Largest size in MiB of the prefix cache of air's own inference server: it keeps the keys and values of
    prompts and replies, so that a group computes its prompt once and a turn computes only what is new. The
    cache is empty while the weights are trained. None: an eighth of the memory that is available at the
    start. 0: no prefix cache. vLLM has a prefix cache of its own."""
    shuffle_rewards: bool = False
    """Whether to shuffle the rewards within each group (a control experiment: nothing can be learnt)."""
    reward_to_go: bool = False
    """Whether each turn gets an advantage of its own. It comes from the rewards of that turn and later turns,
    compared with the same turn in the group's other episodes. Needs `credit = "episode"` in the `env` of
    every source. false: all turns of an episode (or segment, as `credit` says) get one advantage, from its
    whole reward."""
    estimator: EstimatorConfig | None = None
    """A user's advantage estimator that replaces `orchestrator.algo`. None: `orchestrator.algo` is used."""
    duration_weight_cap: float | None = Field(None, gt=1, allow_inf_nan=False)
    """Largest weight of an action by its duration: the advantages of each reply are multiplied by the
    execution time of its action, divided by the mean over the task's actions in the step (Yang et al. 2025,
    arXiv 2509.01684). Weights are between 1 / `duration_weight_cap` and `duration_weight_cap`, with the mean
    1. A reply whose action has no known execution time has the weight 1. None: all weights are 1."""
    top_spread_share: float | None = Field(None, gt=0, le=1)
    """Share of a step's groups that are trained: the groups whose episodes' rewards have the largest standard
    deviation (GRL trains 0.25). At least one group is trained. None: all groups."""
    replays_without_spread: int = Field(0, ge=0)
    """Number of times that a group whose rewards are all equal is played again in the same step, with the
    same prompt, until its rewards differ. Only the last attempt is trained and counted. 0: never."""
    levels: list[LevelsConfig] = Field(default_factory=list)
    """Curricula of levels: a source begins with easy tasks, and later plays harder ones."""
    rounds: RoundsConfig | None = None
    """A curriculum in which episodes get longer from stage to stage. None: no such curriculum."""
    kl: KLConfig | None = None
    """A penalty for moving away from the reference model. None: no penalty."""
    reference: ReferenceConfig = ReferenceConfig()
    """The model that KL terms compare the policy with."""
    value_model: ValueModelConfig = ValueModelConfig()
    """The value model of the algorithm `gae` (generalised advantage estimation, as in PPO)."""
    record_tokens_mb: float = Field(256.0, ge=0, allow_inf_nan=False)
    """Largest size in MiB of the run's folder `tokens/`, which the viewer shows. For each sampled token of
    the last steps it holds the log-probability, the trainer's probability ratio and the advantage. Files of
    earlier steps are deleted. 0: nothing is recorded."""
    tensorboard: bool = False
    """Whether to write metrics to the run's folder `tensorboard/`, too; `tensorboard --logdir FOLDER` shows
    them. It needs `pip install 'air-agent[tensorboard]'`."""
    best_metric: str = "reward"
    """The metric of evaluations (`orchestrator.eval`) whose highest value marks the best checkpoint, such as
    `reward`, `phi`, `test_score` or `reward/<term>`. An evaluation with a smaller share of failed episodes
    is better than any with a larger one, because the metric leaves failed episodes out. The best checkpoint
    is never deleted."""
    max_failed_steps: int = Field(3, ge=1)
    """The run stops after this many consecutive steps in which every episode failed."""
    seed: int = 0
    """Seed of the random order of prompts, of the sampled replies, and of `shuffle_rewards`."""
    deterministic: bool = False
    """Whether a run can be repeated bit by bit on the same machine, and a resumed run equals a run that was
    never stopped. Such a run is slower. Replies are sampled one at a time, because rounding depends on the
    other replies in a batch; and torch uses only deterministic algorithms. The flag `--deterministic` sets
    the same."""


class RunConfig(BaseConfig):
    """All settings in a run file of the embedded training engine."""

    max_steps: int = Field(ge=1)
    """Number of steps; each step updates the weights once."""
    seq_len: int = Field(2048, ge=64)
    """Longest episode in tokens. An episode ends, and is graded, before it would exceed this number."""
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
        self._check_algorithm()
        if self.resume is not None and self.run.name is None:
            raise ValueError("resume needs run.name, the run to continue")
        if self.embedded.deterministic and self.embedded.inference == "vllm":
            raise ValueError(
                'embedded.deterministic needs embedded.inference = "transformers": vLLM rounds differently '
                "with each batch"
            )
        if self.embedded.deterministic and self.orchestrator.max_off_policy_steps:
            raise ValueError(
                "embedded.deterministic needs orchestrator.max_off_policy_steps = 0: which replies the new "
                "weights sample depends on timing"
            )
        self._check_durations()
        check_schedule(self.trainer.scheduler, self.max_steps)
        return self

    def _check_durations(self) -> None:
        """Raises ValueError if actions cannot be weighted by their durations, although this is set."""
        if self.embedded.duration_weight_cap is None:
            return
        if self.embedded.deterministic:
            raise ValueError(
                "embedded.deterministic cannot be combined with embedded.duration_weight_cap: durations are "
                "measured, and differ from run to run; remove one of the two"
            )
        if not any(measures_actions(source.env) for source in self.orchestrator.train.source):
            raise ValueError(
                "embedded.duration_weight_cap has no effect: no source of orchestrator.train measures the "
                'durations of actions; it needs an environment of air with harness.id = "air"'
            )

    def _check_algorithm(self) -> None:
        """Raises ValueError if a setting does not fit the algorithm, or if a setting would have no effect."""
        embedded, algo, loss = self.embedded, self.orchestrator.algo, self.trainer.loss.type
        if embedded.estimator is None and algo.losses and loss not in algo.losses:
            raise ValueError(
                f"orchestrator.algo.type = {algo.type!r} needs trainer.loss.type = "
                f"{' or '.join(map(repr, sorted(algo.losses)))}, not {loss!r}"
            )
        if embedded.reward_to_go and getattr(algo, "length_penalty", None) is not None:
            raise ValueError(
                "orchestrator.algo.length_penalty lowers the rewards of whole episodes: remove "
                "embedded.reward_to_go, or the penalty"
            )
        kl = embedded.kl
        in_reward = kl is not None and kl.place == "reward"
        if embedded.estimator is None and in_reward and not algo.penalties_in_reward:
            raise ValueError(
                f"orchestrator.algo.type = {algo.type!r} divides by the mean reward, which a penalty would "
                'change: set embedded.kl.place = "loss"'
            )
        if in_reward and kl is not None and kl.estimator == "full" and self.overlaps:
            raise ValueError(
                'embedded.kl.estimator = "full" in the reward needs orchestrator.max_off_policy_steps = 0: '
                "the weights that sampled a reply may be gone when the penalty is computed"
            )
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

    def named(self) -> RunConfig:
        """Returns this config if it has a `run.name`, else a copy with a new name from the date, the tasks
        and the model, with a random part."""
        if self.run.name is not None:
            return self
        played: list[str] = []
        for source in self.orchestrator.train.source:
            played += getattr(source.env.taskset, "tasks", None) or [source.resolved_name]
        more = [f"{len(played) - _NAMED_TASKS}-more"] if len(played) > _NAMED_TASKS else []
        parts = "-".join([time.strftime("%Y-%m-%d"), *played[:_NAMED_TASKS], *more])
        name = f"{parts}--{Path(self.model.name).name}--{secrets.token_hex(3)}"
        name = re.sub(r"[^\w.-]+", "_", name)  # ids of tasks and models can be paths and URLs
        return self.model_copy(update={"run": RunNameConfig(name=name)})

    def with_checkout(self) -> RunConfig:
        """Returns a copy of this config in which each source with MLGym tasks names its MLGym checkout (a
        folder), so that a resumed run uses the same checkout. If a source names none, the checkout is the
        path in the environment variable `AIR_MLGYM_ROOT`, if this is set."""
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
        """Returns a copy of this config in which `embedded.inference` is `inference`."""
        embedded = self.embedded.model_copy(update={"inference": inference})
        return self.model_copy(update={"embedded": embedded})

    def algorithm(self) -> Algorithm:
        """Returns a new algorithm: the user's estimator (`[embedded.estimator]`) if there is one, else
        `orchestrator.algo`. If `[embedded.kl]` is set, the algorithm also computes the KL penalty. If
        `embedded.duration_weight_cap` is set, the advantages are weighted at the end."""
        own, kl = self.embedded.estimator, self.embedded.kl
        algorithm = self.orchestrator.algo.build() if own is None else FromRewards(own.load())
        algorithm = algorithm if kl is None else WithKL(algorithm, kl)
        cap = self.embedded.duration_weight_cap
        return algorithm if cap is None else WithDurationWeights(algorithm, cap)

    @property
    def trains_zero_advantages(self) -> bool:
        """Whether sampled tokens with advantage 0 are trained, because the loss has terms that do not depend
        on the advantage."""
        kl = self.embedded.kl
        in_loss = kl is not None and kl.place == "loss"
        return in_loss or self.trainer.loss.entropy_coefficient > 0

    @property
    def rewards_at_turns(self) -> bool:
        """Whether each turn of an episode is credited with its own reward and the rewards of later turns. If
        false, all turns of an episode or segment are credited with its whole reward."""
        sources = self.orchestrator.train.source
        by_segment = any(getattr(source.env, "credit", "") == "segment" for source in sources)
        wanted = self.embedded.reward_to_go or self.algorithm().rewards_at_turns
        return wanted and not by_segment

    @property
    def overlaps(self) -> bool:
        """Whether the episodes of the next step play during an update of the weights."""
        return self.orchestrator.max_off_policy_steps > 0

    @property
    def seeds_requests(self) -> bool:
        """Whether requests for replies to the inference server carry seeds. Requests to vLLM carry none,
        because vLLM would draw the same numbers in every turn of an episode. Call this only after
        `with_inference`: `embedded.inference` must not be `auto`."""
        return self.embedded.inference == "transformers"

    @property
    def uses_process_boxes(self) -> bool:
        """Whether a source of prompts runs its episodes in process boxes, which isolate less than
        containers."""
        envs = (source.env for source in self.orchestrator.sources)
        return any(getattr(env, "provider", "") == "process" for env in envs)

    @property
    def folder(self) -> Path:
        """The path of the run's folder, `output_dir / run.name`; `run.name` must be set (see `named`)."""
        assert self.run.name is not None
        return self.output_dir.expanduser() / self.run.name


def _with_checkout(source: AnySource, root: str | None) -> AnySource:
    taskset = source.env.taskset
    if not root or not isinstance(taskset, AirTasksetConfig) or taskset.mlgym_root is not None:
        return source
    if not any(task.startswith(PREFIX) for task in taskset.tasks):
        return source
    named = taskset.model_copy(update={"mlgym_root": Path(root).expanduser().absolute()})
    return source.model_copy(update={"env": source.env.model_copy(update={"taskset": named})})
