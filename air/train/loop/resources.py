"""Opens the resources of a run of the embedded engine: loads the policy, builds the trainer, and starts the
inference server and the environments."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from air.env.config import ResearchEnvConfig
from air.errors import UsageError
from air.sandbox.pool.gpus import Gpu
from air.train.algorithms.base import Need
from air.train.config.env_source import EnvSource
from air.train.config.eval_config import EvalSourceConfig
from air.train.config.run_config import RunConfig
from air.train.devices import device, memory
from air.train.devices.device import Device
from air.train.evaluation.periodic_evaluation import Evaluations
from air.train.loop import further_models, run_folder
from air.train.loop.further_models import FurtherModels
from air.train.loop.rollout import Source, serving, with_defaults
from air.train.loop.step_logs.token_log import TokenLog
from air.train.loop.trainer import Trainer
from air.train.model import determinism, policy
from air.train.model.attention import check_length
from air.train.model.policy import Policy
from air.train.serving import choose_server
from air.train.serving.choose_server import Choice, Server
from air.train.serving.llama_decoder import copied_bytes
from air.train.serving.prefix_cache import default_limit

AnySource = TypeVar("AnySource", bound=EnvSource)


@dataclass(frozen=True)
class Resources:
    """The open resources that every training step uses: policy, trainer, inference server and
    environments."""

    config: RunConfig
    """The run's settings. In them, `embedded.inference` is the inference server that was chosen (`vllm` or
    `transformers`), never `auto`."""
    policy: Policy
    trainer: Trainer
    server: Server
    sources: Sequence[Source]
    further_models: FurtherModels
    """The further models that the algorithm needs besides the policy."""
    tokens: TokenLog | None
    """The log that records, for each sampled token, its advantage and log-probability in the training. None
    if the run records no tokens."""
    evaluations: Evaluations | None
    """The evaluations that the run makes between training steps. None if the run file configures none."""


class ResourceOpener:
    """Opens the resources of one run: models, trainer, inference server and environments. Call `open` only
    once.

    `needs` names the inputs that the run's algorithm needs beyond rewards, such as `reference`. `checkpoint`
    is the folder of the checkpoint from which the run resumes, and `state` is the training state in this
    folder (see `checkpoint.load_state`); for a new run, both are None. `say` is called with each line of text
    for the user. `gpu_bytes` returns the total memory of a GPU in bytes.
    """

    def __init__(
        self,
        config: RunConfig,
        needs: Set[Need],
        checkpoint: Path | None,
        state: Mapping[str, Any] | None,
        say: Callable[[str], None],
        *,
        gpu_bytes: Callable[[torch.device], int] = memory.total,
    ) -> None:
        self.config, self.needs = config, needs
        self._gpu_bytes = gpu_bytes
        self.start = str(checkpoint or _expanded(config.model.name))
        self.state = state
        self.say = say
        self.folder = config.folder
        self._stopping = threading.Event()
        self._reserved: dict[str, Gpu | None] = {}
        """The GPUs that boxes (the agents' containers) must not use, by the environment setting that reserves
        them: `inference_gpus` has the inference server's GPU, and `trainer_gpus` the trainer's. A value of
        None reserves no GPU."""

    async def open(self, stack: AsyncExitStack) -> Resources:
        """Loads the models, starts the inference server and the environments, and returns all resources.
        Closing `stack` stops the servers and environments and releases the GPUs. Raises UsageError if the
        model, a GPU, vLLM or a port cannot be used."""
        stack.enter_context(determinism.deterministic(self.config.embedded.deterministic))
        if note := self.config.staleness_note:
            self.say(note)
        choice = await asyncio.to_thread(self._choose)
        stack.callback(choice.release)
        self.say(str(choice))
        place = await asyncio.to_thread(self._device, choice)
        stack.callback(place.release)
        self.say(str(place))
        self.config = self.config.with_inference(choice.name)
        self.config.embedded.set_threads()
        # Cancelling does not end a thread that waits for a teacher's server; this event ends it.
        stack.callback(self._stopping.set)
        model, models = await asyncio.to_thread(self._load, place)
        if problem := self._shared_gpu_problem(model, models, choice, place):
            models.close()
            del model, models
            place = device.cpu_instead(place, problem)
            self.say(str(place))
            model, models = await asyncio.to_thread(self._load, place)
        stack.callback(models.close)
        if warning := device.bfloat16_warning(place, model.model.dtype, device.cpuinfo()):
            self.say(warning)
        self._reserved = {"inference_gpus": choice.gpu, "trainer_gpus": place.gpu}
        trainer = self._trainer(model, models)
        if self.state is not None:
            trainer.load_state_dict(self.state)
            models.load_state_dict(self.state.get("needed", {}))
        share = self._check_memory(model, models, choice, place)
        server = await self._server(choice, model, share, stack)
        sources = await self._sources(model, stack)
        log, evaluations = self._token_log(model), self._evaluations(model)
        if evaluations is not None:
            self._say_not_held_out(evaluations, sources)
        return Resources(self.config, model, trainer, server, sources, models, log, evaluations)

    async def _server(
        self, choice: Choice, model: Policy, share: float | None, stack: AsyncExitStack
    ) -> Server:
        server = choose_server.server(
            choice,
            model,
            self.config.embedded,
            # This name is the same before and after a resume; the checkpoint's name would not be.
            name=_expanded(self.config.model.name),
            max_model_len=_context_tokens(self.config, model),
            folder=self.folder,
            say=self.say,
            gpu_share=share,
        )
        stack.callback(server.stop)
        await asyncio.to_thread(server.start)
        return server

    async def _sources(self, model: Policy, stack: AsyncExitStack) -> Sequence[Source]:
        trajectories = self.folder / run_folder.TRAJECTORIES
        sources = self.config.orchestrator.train.source
        configs = [self._with_run_defaults(source, model, trajectories) for source in sources]
        group_size = self.config.orchestrator.group_size
        return await stack.enter_async_context(serving(configs, group_size))

    def _evaluations(self, model: Policy) -> Evaluations | None:
        config = self.config.orchestrator.eval
        if config is None:
            return None

        def fill_in_settings(source: EvalSourceConfig, record_dir: Path) -> EvalSourceConfig:
            return self._with_run_defaults(source, model, record_dir)

        embedded = self.config.embedded
        seed = embedded.seed if self.config.seeds_requests else None
        metric = embedded.best_metric
        evaluations = Evaluations(
            config, self.folder, fill_in_settings, seed=seed, best_metric=metric
        )
        evaluations.check_tasks()
        return evaluations

    def _say_not_held_out(self, evaluations: Evaluations, sources: Sequence[Source]) -> None:
        """Tells the user if prompts of the evaluations are also prompts of the training: the evaluations
        would then not show how well the policy does on prompts that it was not trained on. Names the setting
        that gives the evaluations other prompts."""
        prompts = evaluations.trained_prompts(task for one in sources for task in one.tasks)
        if not prompts:
            return
        named, seeds = (
            sorted({getattr(p.data, key) for p in prompts}) for key in ("task_id", "seed")
        )
        self.say(
            f"evaluation: {len(prompts)} of its prompts are prompts of the training, too ({named[0]}, seed "
            f"{seeds[0]}, …); for held-out prompts set taskset.first_seed of [[orchestrator.eval.source]] to "
            f"{seeds[-1] + 1} or more"
        )

    def _token_log(self, model: Policy) -> TokenLog | None:
        embedded = self.config.embedded
        if not embedded.record_tokens_mb:
            return None
        return TokenLog(
            self.folder,
            model.tokenizer,
            embedded.record_tokens_mb * 2**20,
            temperature=self.config.orchestrator.train.sampling.temperature,
            by_turn=self.config.rewards_at_turns,
            shuffled=embedded.shuffle_rewards,
        )

    def _device(self, choice: Choice) -> Device:
        """Returns the device on which the policy is trained: never a GPU that boxes (the agents' containers)
        may use, and vLLM's GPU only if no other GPU is free. `choice` is the inference server that was
        chosen, with its GPU."""
        place = self._free_device(choice.gpu)
        if self.config.embedded.device == "auto" and self._overlaps_on_shared_gpu(place, choice):
            return device.cpu_instead(place, "vLLM has the only GPU, and samples during updates")
        return place

    def _overlaps_on_shared_gpu(self, place: Device, choice: Choice) -> bool:
        """Returns whether vLLM would have to sample on the policy's GPU while the policy is updated there,
        which is not supported. `place` is the device of the policy, `choice` the inference server."""
        return self.config.overlaps and choice.vllm is not None and _shared(place, choice)

    def _free_device(self, inference: Gpu | None) -> Device:
        envs = [source.env for source in self.config.orchestrator.sources]
        return device.choose_beside(envs, self.config.embedded.device, inference=inference)

    def _load(self, place: Device) -> tuple[Policy, FurtherModels]:
        """Loads the policy onto the device `place`, and the further models that the algorithm needs."""
        embedded = self.config.embedded
        model = policy.load(
            self.start,
            dtype=place.dtype(embedded.dtype),
            device=place.torch_device,
            attention=embedded.attention,
            lora=self.config.trainer.model.lora,
        )
        check_length(model.model.config, model.name, _context_tokens(self.config, model), "seq_len")
        return model, further_models.load(self.needs, self.config, model, self.say, self._stopping)

    def _shared_gpu_problem(
        self, model: Policy, models: FurtherModels, choice: Choice, place: Device
    ) -> str:
        """Checks whether vLLM's GPU, on which the trainer runs with `embedded.device = "auto"`, has enough
        memory for both. Returns a message if it has not. Returns an empty string if it has, if the user chose
        the device, or if vLLM and the trainer use different devices. `place` is the trainer's device,
        `choice` the inference server."""
        if self.config.embedded.device != "auto" or not _shared(place, choice):
            return ""
        need = self._memory(model, models, choice)
        try:
            memory.share_for_vllm(need, self._gpu_bytes(place.torch_device), need.weights)
        except UsageError as error:
            return f"vLLM has the only GPU: {error}"
        return ""

    def _memory(self, model: Policy, models: FurtherModels, choice: Choice) -> memory.Memory:
        return memory_of_run(
            self.config,
            model,
            samples_here=choice.vllm is None,
            other_models=models.loaded_bytes() + models.training_bytes(),
            divergence="divergence" in self.needs,
        )

    def _check_memory(
        self, model: Policy, models: FurtherModels, choice: Choice, place: Device
    ) -> float | None:
        """Warns the user if the run may not fit into the memory of its device. If vLLM and the trainer use
        the same GPU, tells the user how the two share the GPU's memory, and returns vLLM's share (0 to 1) of
        this memory; otherwise returns None. Raises UsageError if the memory is too small for vLLM and the
        trainer, or if vLLM would have to sample during an update although it shares the GPU or serves a LoRA
        adapter."""
        overlap = self.config.overlaps and choice.vllm is not None
        if overlap and (_shared(place, choice) or model.has_adapter):
            remedies = ['embedded.inference = "transformers"']
            remedies += [] if model.has_adapter else ['embedded.device = "cpu"']
            raise UsageError(
                "vLLM cannot sample during an update while it serves an adapter or shares the GPU",
                where="orchestrator.max_off_policy_steps",
                remedy=f"set it to 0, or {' or '.join(remedies)}",
            )
        need = self._memory(model, models, choice)
        if _shared(place, choice):
            total = self._gpu_bytes(place.torch_device)
            share = memory.share_for_vllm(need, total, need.weights)
            self.say(memory.split(need, total, share))
            return share
        name = "this machine" if place.gpu is None else f"GPU {place.gpu.index}"
        loaded = need.program + need.weights + models.loaded_bytes()
        available = memory.available(place.torch_device) + loaded
        if problem := memory.warning(need, available, name):
            self.say(problem)
        return None

    def _choose(self) -> Choice:
        envs = [source.env for source in self.config.orchestrator.sources]
        names = [g for e in envs if isinstance(e, ResearchEnvConfig) for g in e.inference_gpus]
        embedded = self.config.embedded
        wanted = "transformers" if embedded.deterministic else embedded.inference
        boxes = device.gpus_of_boxes(envs)
        return choose_server.choose(wanted, list(dict.fromkeys(names)), boxes=boxes)

    def _trainer(self, model: Policy, models: FurtherModels) -> Trainer:
        kl = self.config.embedded.kl
        in_loss = kl is not None and kl.place == "loss"
        return Trainer(
            model,
            self.config.trainer.optim,
            scheduler=self.config.trainer.scheduler,
            loss=self.config.loss,
            kl=kl.estimator if kl is not None and in_loss else None,
            reference=models.divergence.reference if models.divergence and in_loss else None,
            max_steps=self.config.max_steps,
            micro_batch_tokens=self.config.embedded.micro_batch_tokens,
            gradient_checkpointing=self.config.embedded.gradient_checkpointing,
        )

    def _with_run_defaults(self, source: AnySource, model: Policy, record_dir: Path) -> AnySource:
        """Returns a copy of `source`, the settings of an environment and its tasks. In the copy, environment
        settings that the user left out have the run's values: the tokenizer, the context length, the GPUs
        that boxes (the agents' containers) must not use, and the folder of trajectories, `record_dir`."""
        env = source.env
        if isinstance(env, ResearchEnvConfig):
            absent = {key: gpu for key, gpu in self._reserved.items() if not getattr(env, key)}
            env = env.model_copy(update={k: [gpu.uuid] for k, gpu in absent.items() if gpu})
        env = with_defaults(
            env,
            model,
            max_context_tokens=_context_tokens(self.config, model),
            record_dir=record_dir,
        )
        return source.model_copy(update={"env": env})


def memory_of_run(
    config: RunConfig,
    model: Policy,
    *,
    samples_here: bool = True,
    other_models: int = 0,
    divergence: bool = False,
) -> memory.Memory:
    """Returns the estimated memory of a run with the settings `config` that trains `model`. `samples_here`
    says whether this process samples the replies. `other_models` is the memory in bytes of further models,
    and `divergence` says whether the KL divergence over the whole vocabulary is computed."""
    embedded, batch_size = config.embedded, config.orchestrator.batch_size
    return memory.estimate(
        model.model,
        config.trainer.optim,
        micro_batch_tokens=embedded.micro_batch_tokens,
        seq_len=_context_tokens(config, model),
        max_batch=min(embedded.max_batch, batch_size) if samples_here else 0,
        batch_size=batch_size,
        prefix_cache=_prefix_cache_bytes(config, model),
        weight_copies=copied_bytes(model.model),
        gradient_checkpointing=embedded.gradient_checkpointing,
        other_models=other_models,
        divergence=divergence,
    )


def _prefix_cache_bytes(config: RunConfig, model: Policy) -> int:
    if config.embedded.deterministic:
        return 0
    if config.embedded.prefix_cache_mb is None:
        return default_limit(model.device)
    return int(config.embedded.prefix_cache_mb * 2**20)


def _context_tokens(config: RunConfig, model: Policy) -> int:
    return min(config.seq_len, model.max_length)


def _shared(place: Device, choice: Choice) -> bool:
    """Returns whether the policy, on the device `place`, and the inference server `choice` use the same
    GPU."""
    return place.gpu is not None and place.gpu == choice.gpu


def _expanded(name: str) -> str:
    return str(Path(name).expanduser()) if name.startswith("~") else name
