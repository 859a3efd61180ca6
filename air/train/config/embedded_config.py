"""Defines the settings in a run file's table `[embedded]`, which prime-rl does not have: how the embedded
training engine uses this machine, samples replies, and extends prime-rl's algorithms."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from air.config import BaseConfig
from air.train.algorithms import Estimator, custom_estimator
from air.train.config.curriculum_config import LevelsConfig, TurnStagesConfig
from air.train.config.further_models_config import ReferenceConfig, ValueModelConfig
from air.train.config.loss_options import KLConfig

Inference = Literal["auto", "vllm", "transformers"]


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
        custom_estimator.find(value)
        return value

    @model_validator(mode="after")
    def _callable(self) -> Self:
        custom_estimator.check_kwargs(self.import_path, self.kwargs)
        return self

    def load(self) -> Estimator:
        """Imports the user's function, and returns an estimator: a function that takes the list of a group's
        rewards and calls the user's function with it and `kwargs`. Raises ValueError if the function cannot
        be imported."""
        return custom_estimator.load(self.import_path, self.kwargs)


def usable_cores() -> int:
    """Returns the number of CPU cores that this process may use. If the environment variable OMP_NUM_THREADS
    is set to a positive integer, or to a list that begins with one (`4,2`), returns this integer instead."""
    wanted = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    if wanted.isdigit() and int(wanted):
        return int(wanted)
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    return len(affinity(0)) if affinity else os.cpu_count() or 1


class ComputeConfig(BaseConfig):
    """Settings in the run file's table `[embedded]` that exist both for reinforcement learning (`rl`) and for
    supervised training (`sft`)."""

    threads: int | None = Field(None, ge=1)
    """Number of CPU threads that torch uses. None: torch uses all cores for training and half of the cores
    for sampling, because boxes (the agents' sandboxes) need cores, too. (Threads that wait for each other on
    busy cores are many times slower than one thread.) If episodes play during updates
    (`orchestrator.max_off_policy_steps` above 0), training also uses only half of the cores. The number of
    cores is that of the cores that the process may use, or the environment variable OMP_NUM_THREADS if it is
    set. If other work keeps the machine busy, set 1."""
    micro_batch_tokens: int = Field(8192, ge=1)
    """Largest number of tokens, including padding, in one forward and backward pass."""

    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    """Where the model is held and trained: `cpu`, `cuda` (the first free GPU) or `cuda:N` (N as in
    `nvidia-smi`). `auto`: a GPU that torch can use and no box (an agent's sandbox) holds. If there is none,
    or the only GPU is too small for both vLLM and the policy, `auto` means the CPU. The engine leases its
    GPU, so no box gets it."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of the model's weights, also in vLLM. `auto`: bfloat16 on a GPU that has instructions for
    bfloat16, else float32. If the policy is then in float32 on the CPU, but vLLM runs on a GPU, vLLM uses
    bfloat16. In bfloat16 the optimiser keeps float32 copies of trained weights, because small updates would
    be lost in rounding."""
    attention: Literal["auto", "sdpa", "eager"] = "auto"
    """How attention is computed: `sdpa` (torch's fused attention) or `eager` (slower, more memory). `auto`:
    `sdpa` if the model's family supports it, else `eager`."""
    gradient_checkpointing: bool = False
    """Whether the backward pass computes the results of layers again, so that these results need not be kept
    in memory. This saves most of the memory of training on long sequences, and costs one more forward
    pass."""

    def set_threads(self) -> None:
        """Sets the number of CPU threads that torch uses while boxes (the agents' sandboxes) run commands:
        the setting `threads`, or half of the cores if it is None. Call this method before any other thread
        uses torch."""
        import torch

        torch.set_num_threads(self.threads or max(1, usable_cores() // 2))

    @contextmanager
    def training_threads(self) -> Iterator[None]:
        """Context manager: inside the block, torch uses the number of CPU threads in the setting `threads`
        or, if it is None, as many as there are cores. Use it only for work during which no reply is sampled
        and no box (an agent's sandbox) runs a command."""
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
    """Largest size in MiB of the prefix cache of air's own inference server. The cache keeps the keys and
    values of prompts and replies, so that a group computes its prompt once and a turn computes only what is
    new. The cache is empty while the weights are trained. None: an eighth of the memory that is available at
    the start. 0: no prefix cache. vLLM has a prefix cache of its own."""
    shuffle_rewards: bool = False
    """Whether to shuffle the rewards among the episodes of each group, as a control experiment: nothing can
    be learnt from them. With `reward_to_go`, what is shuffled is each turn's sum of its reward and all later
    ones, among the group's turns of the same number. The mean of these sums is then replaced by that of the
    step's other groups; without this, a turn that only one episode of the group has would keep its own
    sum."""
    reward_to_go: bool = False
    """Whether each turn gets an advantage of its own. This advantage comes from the sum of the rewards of the
    turn and all later turns, compared with the same sum in the group's other episodes. Needs
    `credit = "episode"` in the `env` of every source. false: all turns of an episode (or segment, as `credit`
    says) get one advantage, from its whole reward."""
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
    """Largest number of times that a group whose rewards are all equal is played again in the same step, with
    the same prompt, until its rewards differ. Only the last attempt is trained and counted. 0: never."""
    levels: list[LevelsConfig] = Field(default_factory=list)
    """Curricula of levels, at most one for each source of prompts: the source begins with easy tasks, and
    later plays harder ones. Empty: no such curriculum."""
    rounds: TurnStagesConfig | None = None
    """A curriculum in which episodes get longer from stage to stage. None: no such curriculum."""
    kl: KLConfig | None = None
    """A penalty for moving away from the reference model. None: no penalty."""
    reference: ReferenceConfig = ReferenceConfig()
    """The model that KL terms compare the policy with."""
    value_model: ValueModelConfig = ValueModelConfig()
    """The value model of the algorithm `gae` (generalised advantage estimation, as in PPO)."""
    record_tokens_mb: float = Field(256.0, ge=0, allow_inf_nan=False)
    """Largest size in MiB of the run's folder `tokens/`, which the viewer shows. For each sampled token of
    the last steps, this folder holds the log-probability, the trainer's probability ratio and the advantage.
    Files of earlier steps are deleted. 0: nothing is recorded."""
    tensorboard: bool = False
    """Whether to write metrics to the run's folder `tensorboard/`, too; `tensorboard --logdir FOLDER` shows
    them. This setting needs `pip install 'air-agent[tensorboard]'`."""
    best_metric: str = "reward"
    """The metric of evaluations (`orchestrator.eval`) whose highest value marks the best checkpoint, such as
    `reward`, `phi`, `test_score` or `reward/<term>`. An evaluation with a smaller share of episodes with
    infrastructure errors always counts as better than one with a larger share, because the metric leaves
    these episodes out. The best checkpoint is never deleted."""
    max_failed_steps: int = Field(3, ge=1)
    """The run stops after this many consecutive steps in which every episode ended with an infrastructure
    error."""
    seed: int = 0
    """Seed of the random order of prompts, of the sampled replies, and of `shuffle_rewards`."""
    deterministic: bool = False
    """Whether a run can be repeated bit by bit on the same machine, and a resumed run equals a run that was
    never stopped. Such a run is slower. Replies are sampled one at a time, because rounding depends on the
    other replies in a batch; and torch uses only deterministic algorithms. The flag `--deterministic` sets
    the same."""
