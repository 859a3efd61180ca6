"""Turns the settings of one side of a co-evolution into those of its trainings, by either engine.

A side is one of the two models: the proposer, which writes questions, or the executor, which answers them.
The run files of a side decide which engine trains it: the embedded one, or prime-rl.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from air.env.config import ResearchEnvConfig
from air.errors import ConfigError
from air.sandbox.pool import gpus
from air.sandbox.pool.gpus import Gpu
from air.train.choose_engine import Engine, choose
from air.train.config import overrides
from air.train.config.coevolve_config import SideConfig
from air.train.config.embedded_config import ComputeConfig, EmbeddedConfig
from air.train.config.overrides import MergedSettings
from air.train.config.run_config import RunConfig
from air.train.matrix.plan import single_taskset
from air.train.matrix.training import last_checkpoint
from air.train.prime_rl import run_file, schema, shared_keys
from air.train.prime_rl.throughput_inputs import DEFAULT_BATCH
from air.train.prime_rl.training import PrimeTraining

Training = RunConfig | PrimeTraining
"""The settings of one training: those of the embedded engine, or of prime-rl."""

_FOLDER = "remove it; the co-evolution gives each training a folder of its own"
_SET_BY_COEVOLUTION = {
    "output_dir": "set `output_dir` of the co-evolution (--output-dir)",
    "run.name": "set `name` of the co-evolution (--name)",
    "embedded.seed": "set `seed` of the co-evolution (--seed)",
    **dict.fromkeys(
        ("resume", "trainer.resume", "orchestrator.resume"),
        "remove it; the same command continues a co-evolution",
    ),
    **dict.fromkeys(
        (
            *("run.dir", "clean", "ckpt.output_dir", "trainer.ckpt.output_dir"),
            *("trainer.output_dir", "orchestrator.output_dir"),
        ),
        _FOLDER,
    ),
    **dict.fromkeys(
        ("trainer.model.name", "orchestrator.model.name", "inference.vllm.model"),
        "remove it; `model` of the proposer or executor names the first model",
    ),
}
"""Maps each key that the user may set neither in the run files nor in the tables `settings`, because the
co-evolution sets it for each training, to a text that says what the user can do instead. Most of them are
prime-rl's. The co-evolution sets `model.name`, too, but a run file needs this key."""


@dataclass(frozen=True)
class Side:
    """One of the two models of a co-evolution, with the settings of its trainings. `name` is `proposer` or
    `executor`."""

    name: str
    config: SideConfig
    engine: Engine
    played: RunConfig
    """The settings with which this process plays episodes of the model outside its trainings. If the embedded
    engine trains the model, these are the settings of the training, too."""
    episodes: int
    """The number of episodes that one training of this model plays."""

    def training(self, folder: Path, model: str, task: str, prompts: int, seed: int) -> Training:
        """Returns the settings of a training in a new folder, named as the side, in `folder`. It starts from
        `model`, a folder or hub id, and plays `prompts` prompts of the task `task`. prime-rl has no `seed`
        for a whole training."""
        own = {
            "output_dir": str(folder),
            "run": {"name": self.name},
            "model": {"name": model},
        }
        if self.engine == "prime-rl":
            merged = _merged(self.config, self.name, task, prompts, own)
            _read_prime(merged)
            return PrimeTraining({**merged.data, "ckpt": merged.data.get("ckpt") or {}})
        own["embedded"] = {"seed": seed}
        return _embedded(_merged(self.config, self.name, task, prompts, own), self.name)

    def identity(self) -> dict[str, Any]:
        """Returns the settings on which the results of a training depend, as JSON data."""
        if self.engine == "prime-rl":
            data = _merged(self.config, self.name, "posed:later", 1, {}).data
            return {"engine": self.engine, "settings": data}
        data = self.played.model_dump(mode="json")
        data["embedded"].pop("seed")
        for key in ("output_dir", "run", "resume"):
            data.pop(key)
        return data


def read_side(config: SideConfig, name: str) -> Side:
    """Returns the side `name` (`proposer` or `executor`) with the user's settings `config`. Raises
    ConfigError or MissingError if a run file cannot be used."""
    merged = _merged(config, name, "posed:later", 1, {"run": {"name": name}})
    engine = choose(config.engine, merged, dry_run=True)
    _check_each_file(config, engine)
    if engine == "embedded":
        if config.compute is not None:
            raise ConfigError(
                "is for models that prime-rl trains",
                where=f"{name}.compute",
                remedy=f"set `{name}.settings.embedded`",
            )
        run = _embedded(merged, name)
        return Side(name, config, engine, run, run.max_steps * run.orchestrator.batch_size)
    view = _read_prime(merged)
    _check_prime(view, merged)
    steps, batch = view.max_steps or 0, view.orchestrator.batch_size or DEFAULT_BATCH
    return Side(name, config, engine, _played(merged, config, name), steps * batch)


def _merged(
    config: SideConfig, name: str, task: str, prompts: int, own: Mapping[str, Any]
) -> MergedSettings:
    """Returns the settings of one training of the side `name` (`proposer` or `executor`): those of the side's
    run files, then the side's table `settings`, then those that the co-evolution sets. The co-evolution sets
    `prompts` prompts of the task `task`, the model, and the settings in `own`. Raises ConfigError if the user
    sets a key that only the co-evolution may set."""
    merged = overrides.read_files([f"@{path}" for path in config.run_files])
    overrides.refuse(merged.data, _SET_BY_COEVOLUTION, "the co-evolution", merged.place)
    set_here = {**_SET_BY_COEVOLUTION, "model.name": f"set `{name}.model`"}
    overrides.refuse(config.settings, set_here, "the co-evolution", f"{name}.settings.{{}}".format)
    overrides.put(merged, config.settings, f"{name}.settings")
    taskset = single_taskset(merged, f"the training of the {name}")
    taskset |= {"tasks": [task], "examples_per_task": prompts}
    taskset.pop("weights", None)
    overrides.put(merged, {"model": {"name": expanded(config.model)}}, f"{name}.model")
    overrides.put(merged, own, name)
    return merged


def _check_each_file(config: SideConfig, engine: Engine) -> None:
    """Checks each run file of a side of a co-evolution by itself. Raises ConfigError if a file is not valid
    for `engine`, for example because it has a value at a key that is a table. Without this check, a later
    file or the co-evolution could replace this value without a message."""
    for path in config.run_files:
        if engine == "embedded":
            overrides.read_files([f"@{path}"], RunConfig)
        else:
            schema.check(overrides.read_files([f"@{path}"]).data, "rl", where=str(path))


def _embedded(merged: MergedSettings, name: str) -> RunConfig:
    """Converts the merged settings of a training to those of the embedded engine. `name` is the side,
    `proposer` or `executor`. Raises ConfigError if a setting is wrong, or if the run files name an
    environment that is not air's."""
    run = overrides.build(RunConfig, merged).with_checkout()
    (source,) = run.orchestrator.train.source
    if not isinstance(source.env, ResearchEnvConfig):
        raise ConfigError("needs an environment of air", where=f"{name}.run_files")
    return run


def _read_prime(merged: MergedSettings) -> run_file.PrimeView:
    """Checks the merged settings of a training by prime-rl, and returns the keys that air reads. Raises
    ConfigError if one of these is wrong."""
    data = copy.deepcopy(merged.data)  # because validation changes its input
    return run_file.read(MergedSettings(data, merged.files, merged.origin))


def _check_prime(view: run_file.PrimeView, merged: MergedSettings) -> None:
    """Checks the settings of a training by prime-rl. Raises ConfigError if they do not fit a co-evolution,
    which waits for the end of a training and continues with its model. `view` has the keys that air reads,
    and `merged` all settings."""
    renderer = _table(merged.data, "orchestrator", "renderer").get("name", "auto")
    named = _table(merged.data, "tokenizer") or _table(merged.data, "orchestrator", "tokenizer")
    problems = {
        "dry_run": (bool(merged.data.get("dry_run")), "trains nothing", "remove it"),
        "inference": (
            view.inference is None,
            "without this table, prime-rl starts no server that samples",
            "add it; it may be empty",
        ),
        "orchestrator.renderer.name": (
            renderer == "auto" and not named.get("name"),
            "must be named, because prime-rl finds it only by the names of models on the hub",
            'set it, for example to "qwen3"',
        ),
        "slurm": (
            view.slurm is not None,
            "SLURM starts a run and does not wait for it",
            "remove it",
        ),
        "orchestrator.token_batch_size": (
            view.orchestrator.token_batch_size is not None,
            "does not say how many episodes a step has",
            "set orchestrator.batch_size",
        ),
        "max_steps": (not view.max_steps, "must be set, so that a training ends", "set it"),
        "trainer.model.lora": (
            view.trainer.model.lora is not None,
            "adapters of prime-rl cannot be handed to the next stage",
            "train all weights, or train with the embedded engine",
        ),
    }
    for key, (wrong, problem, remedy) in problems.items():
        if wrong:
            raise ConfigError(problem, where=merged.place(key), remedy=remedy)
    _check_parts(merged)


def _check_parts(merged: MergedSettings) -> None:
    """Raises ConfigError if a part of prime-rl, the trainer or the orchestrator, writes no checkpoints, or if
    prime-rl would refuse the copies of a key in its parts (`shared_keys`) when a training starts."""
    for part in ("trainer", "orchestrator"):
        if _table(merged.data, part).get("ckpt", {}) in (None, "None"):
            raise ConfigError(
                "must not be unset, because the last checkpoint is the trained model",
                where=merged.place(f"{part}.ckpt"),
                remedy="remove it",
            )
    if (found := shared_keys.contradiction(merged.data)) is not None:
        key, other = found
        raise ConfigError(
            f"differs from `{other}`, which prime-rl refuses",
            where=merged.place(key),
            remedy="remove it, or make them equal",
        )


def _table(data: Any, *keys: str) -> dict[str, Any]:
    """Returns the table at the path `keys` in the nested tables `data`, or an empty one."""
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    return data if isinstance(data, dict) else {}


def _played(merged: MergedSettings, config: SideConfig, name: str) -> RunConfig:
    """Returns the settings with which this process plays episodes of a model that prime-rl trains: the
    environment, the limits of tokens, the temperature and the renderer of the run file, and the table
    `compute` of the side."""
    compute = (config.compute or ComputeConfig()).model_dump()
    orchestrator = merged.data["orchestrator"]
    (source,) = orchestrator["train"]["source"]
    sampling = _table(orchestrator, "train", "sampling") | _table(source, "sampling")
    length = merged.data.get("seq_len") or orchestrator.get("seq_len")
    played = MergedSettings(
        {
            "max_steps": 1,
            "model": merged.data["model"],
            "orchestrator": {
                "batch_size": 1,
                "group_size": 1,
                "renderer": orchestrator.get("renderer"),
                "train": {
                    "source": [{"name": name, "env": source["env"]}],
                    "sampling": {
                        key: sampling[key]
                        for key in ("temperature", "max_completion_tokens")
                        if key in sampling
                    },
                },
            },
            "embedded": EmbeddedConfig(**compute).model_dump(),
            **({"seq_len": length} if length else {}),
        },
        merged.files,
        merged.origin,
    )
    return _embedded(played, name)


def free_gpus(training: Training, other: Side) -> list[Gpu] | None:
    """Returns the GPUs on which the model of `other` can play while `training` runs: those visible to this
    process that neither the training nor boxes (agents' sandboxes) use. Returns None, which means the device
    in the settings of `other`, if these name one, or if the embedded engine trains, which leases its GPU
    itself. Raises ConfigError if the training by prime-rl leaves no GPU, or not the one that the settings
    name."""
    device = other.played.embedded.device
    if not isinstance(training, PrimeTraining) or device == "cpu":
        return None
    unused = _unused(training, other)
    names = [f"cuda:{gpu.index}" for gpu in unused]
    if device.startswith("cuda:") and device in names:
        return None
    if device.startswith("cuda:") or not unused:
        key = "compute.device" if other.engine == "prime-rl" else "settings.embedded.device"
        raise ConfigError(
            f"the {other.name} plays during a training by prime-rl, which leaves "
            f"{', '.join(names) or 'no GPU'} for it",
            where=f"{other.name}.{key}",
            remedy=f"set it to {' or '.join([*names, 'cpu'])}, or train on fewer GPUs (deployment)",
        )
    return unused


def preferred_gpus(training: Training, other: Side) -> list[Gpu] | None:
    """Returns the GPUs on which the model of `other` plays best if it plays only before or after `training`:
    those of `free_gpus`. On other GPUs, this process would keep some memory that prime-rl could use. Returns
    None, which means the device in the settings of `other`, if these name one, if the embedded engine trains,
    or if there are no such GPUs."""
    device = other.played.embedded.device
    if not isinstance(training, PrimeTraining) or device == "cpu" or device.startswith("cuda:"):
        return None
    return _unused(training, other) or None


def _unused(training: PrimeTraining, other: Side) -> list[Gpu]:
    names = run_file.visible_devices()
    inventory = gpus.inventory()
    visible = gpus.select(names, inventory) if names else inventory if names is None else []
    (source,) = other.played.orchestrator.train.source
    own = getattr(source.env, "gpus", [])
    boxes = gpus.select(own, inventory) if own and own != "auto" else []
    unused = training.placement().unused
    return [gpu for gpu in unused if gpu in visible and gpu not in boxes]


def result(training: Training) -> Path | None:
    """Returns the folder of the model that a training has made; None if the training is not finished."""
    if isinstance(training, PrimeTraining):
        return training.result()
    return last_checkpoint(training)


def expanded(model: str) -> str:
    """Returns a model's folder or hub id, `model`, with a leading `~` replaced by the path of the home
    folder."""
    return str(Path(model).expanduser()) if model.startswith("~") else model
