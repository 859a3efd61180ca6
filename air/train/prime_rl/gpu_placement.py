"""Decides, without side effects, which GPUs the inference servers, the trainer and the boxes (sandboxes for
agents' commands) get in a run with prime-rl.

prime-rl itself gives the first GPUs that it can see to inference, and the next GPUs to the trainer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from air.errors import ConfigError
from air.sandbox.pool.gpus import Gpu, GpuSelection, listed, select


@dataclass(frozen=True)
class GpuRequest:
    """The settings in a prime-rl run file (TOML) that say which GPUs a run gets."""

    num_infer: int
    """Number of GPUs for inference (`deployment.num_infer_gpus`); 0 if the run starts no inference server."""
    num_train: int
    """Number of GPUs for the trainer (`deployment.num_train_gpus`)."""
    inference: tuple[str, ...] = ()
    """The GPUs (NVML indices or UUIDs) that the setting `inference_gpus` names. Empty: the first GPUs that
    prime-rl can see."""
    trainer: tuple[str, ...] = ()
    """The GPUs (NVML indices or UUIDs) that the setting `trainer_gpus` names. Empty: the GPUs after those of
    inference."""
    boxes: tuple[GpuSelection, ...] = ()
    """The values of the setting `env.gpus`, which names the GPUs for boxes (agents' sandboxes) or is "auto".
    There is one value for each source of prompts (environment in the run file) that has this setting."""


@dataclass(frozen=True)
class Placement:
    """A plan that assigns the GPUs of one machine to inference, to the trainer and to the boxes (agents'
    sandboxes)."""

    inference: tuple[Gpu, ...]
    trainer: tuple[Gpu, ...]
    boxes: tuple[Gpu, ...]
    unused: tuple[Gpu, ...]
    visible: tuple[Gpu, ...]
    """The GPUs that prime-rl can see, in the order in which prime-rl sees them."""

    @property
    def shared(self) -> bool:
        """Whether at least one GPU is used by both inference and the trainer."""
        return bool(set(self.inference) & set(self.trainer))

    def lines(self) -> list[str]:
        """Returns four lines of text for the user, each with the indices of GPUs: those of inference, of the
        trainer and of the boxes (agents' sandboxes), and the unused GPUs."""
        rows = {
            "inference": self.inference,
            "trainer": self.trainer,
            "boxes": self.boxes,
            "left alone": self.unused,
        }
        return [f"{who:<11}{_indices(gpus)}" for who, gpus in rows.items()]


def assumed(count: int) -> list[Gpu]:
    """Returns `count` invented `Gpu` objects, so that a run can be planned on a machine that has no GPU."""
    return [Gpu(index, f"GPU-{index}") for index in range(count)]


def place(
    request: GpuRequest,
    gpus: Sequence[Gpu],
    *,
    flag_gpus: Sequence[str] | None = None,
    visible: Sequence[str] | None = None,
) -> Placement:
    """Assigns the GPUs of a machine, `gpus`, to inference, to the trainer and to the boxes (agents'
    sandboxes).

    GPUs are named by NVML index or UUID. The GPUs that prime-rl can see are determined by the first of these
    that is given:

    1. `flag_gpus`, the value of the flag `--gpus`; inference and the trainer share a GPU that is named twice;
    2. the GPUs that the run file names for inference and the trainer;
    3. `visible`, the value of the variable `CUDA_VISIBLE_DEVICES`;
    4. all GPUs that the run file does not name for boxes.

    None means that the flag or the variable is not set. Raises ConfigError if there are too few GPUs; if a
    named GPU does not exist; if `--gpus` and the run file name different GPUs; or if a box would get a GPU
    that inference or the trainer uses.
    """
    devices = _visible(request, gpus, flag_gpus, visible)
    need = request.num_infer + request.num_train
    if len(devices) < need:
        raise ConfigError(
            f"inference takes {request.num_infer} GPUs and the trainer {request.num_train}, but prime-rl "
            f"sees {len(devices)}: {_indices(devices)}",
            where="deployment",
            remedy=f"change num_infer_gpus and num_train_gpus, or name {need} with --gpus",
        )
    inference, trainer = devices[: request.num_infer], devices[request.num_infer : need]
    _agree(select(request.inference, gpus, where="inference_gpus"), inference, "inference_gpus")
    _agree(select(request.trainer, gpus, where="trainer_gpus"), trainer, "trainer_gpus")
    boxes: list[Gpu] = []
    for setting in request.boxes:
        boxes += _auto(request, devices[need:]) if setting == "auto" else select(setting, gpus)
    run_gpus = {*inference, *trainer}
    placement = Placement(
        tuple(inference),
        tuple(trainer),
        tuple(dict.fromkeys(boxes)),
        tuple(gpu for gpu in gpus if gpu not in run_gpus | set(boxes)),
        tuple(devices),
    )
    conflicts = [gpu for gpu in placement.boxes if gpu in run_gpus]
    if conflicts:
        raise ConfigError(
            f"the boxes' GPU {_indices(conflicts)} is the run's own ({'; '.join(placement.lines())})",
            where="gpus",
            remedy=f"give the boxes others; nobody has: {_indices(placement.unused)}",
        )
    return placement


def _visible(
    request: GpuRequest,
    gpus: Sequence[Gpu],
    flag_gpus: Sequence[str] | None,
    visible: Sequence[str] | None,
) -> list[Gpu]:
    if flag_gpus is not None:
        return [select([name], gpus, where="--gpus")[0] for name in flag_gpus]
    if request.inference or request.trainer:
        return [
            *select(request.inference, gpus, where="inference_gpus"),
            *select(request.trainer, gpus, where="trainer_gpus"),
        ]
    if visible is not None:
        return [select([name], gpus, where="CUDA_VISIBLE_DEVICES")[0] for name in visible]
    names = [name for setting in request.boxes if setting != "auto" for name in setting]
    box_gpus = set(select(list(dict.fromkeys(names)), gpus))
    return [gpu for gpu in gpus if gpu not in box_gpus]


def _agree(declared: Sequence[Gpu], actual: Sequence[Gpu], where: str) -> None:
    if declared and set(declared) != set(actual):
        raise ConfigError(
            f"the run file says {_indices(declared)}, and by position they would be {_indices(actual)}",
            where=where,
            remedy="change it, or deployment, or leave out --gpus",
        )


def _auto(request: GpuRequest, rest: Sequence[Gpu]) -> list[Gpu]:
    """Returns the GPUs of the boxes (agents' sandboxes) if the run file says `gpus = "auto"`: these are the
    GPUs in `rest`, which neither inference nor the trainer uses. Raises ConfigError if `rest` is empty. Also
    raises ConfigError if the run file does not name the GPUs of inference and the trainer: the process that
    starts boxes knows only the run file, so it could not tell which GPUs remain."""
    if not (request.inference and request.trainer):
        problem = '"auto" would take those of vLLM and the trainer'
        remedy = "say inference_gpus and trainer_gpus, or name the boxes' own"
    elif not rest:
        problem = '"auto" leaves none: prime-rl is shown no more than it takes'
        remedy = f"name the boxes' own, or show more with --gpus; {listed(rest)} are left"
    else:
        return list(rest)
    raise ConfigError(problem, where="gpus", remedy=remedy)


def _indices(gpus: Sequence[Gpu]) -> str:
    return ", ".join(str(gpu.index) for gpu in gpus) or "none"
