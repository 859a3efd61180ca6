"""Pure functions that decide which GPUs the inference servers, the trainer and the boxes get.

prime-rl itself gives the first GPUs that it can see to inference, and the next GPUs to the trainer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from air.errors import ConfigError
from air.sandbox.pool.gpus import Gpu, Wanted, listed, select


@dataclass(frozen=True)
class Wish:
    """The settings in a prime-rl run file (TOML) that say which GPUs a run gets."""

    num_infer: int
    """Number of GPUs for inference (`deployment.num_infer_gpus`); 0 if the run starts no inference server."""
    num_train: int
    """Number of GPUs for the trainer (`deployment.num_train_gpus`)."""
    inference: tuple[str, ...] = ()
    """The GPUs that the setting `inference_gpus` names. Empty: the first GPUs that prime-rl can see."""
    trainer: tuple[str, ...] = ()
    """The GPUs that the setting `trainer_gpus` names. Empty: the GPUs after those of inference."""
    boxes: tuple[Wanted, ...] = ()
    """The values of `env.gpus` (the GPUs for boxes), one for each source of prompts that sets this key."""


@dataclass(frozen=True)
class Placement:
    """A plan that assigns GPUs of one machine to inference, to the trainer and to the boxes."""

    inference: tuple[Gpu, ...]
    trainer: tuple[Gpu, ...]
    boxes: tuple[Gpu, ...]
    left: tuple[Gpu, ...]
    """The GPUs that the run does not use."""
    visible: tuple[Gpu, ...]
    """The GPUs that prime-rl can see, in its own order."""

    @property
    def shared(self) -> bool:
        """Whether at least one GPU is used by both inference and the trainer."""
        return bool(set(self.inference) & set(self.trainer))

    def lines(self) -> list[str]:
        """Returns four lines of text: the GPUs of inference, trainer and boxes, and the unused GPUs."""
        rows = {
            "inference": self.inference,
            "trainer": self.trainer,
            "boxes": self.boxes,
            "left alone": self.left,
        }
        return [f"{who:<11}{_indices(gpus)}" for who, gpus in rows.items()]


def assumed(count: int) -> list[Gpu]:
    """Returns `count` invented `Gpu` objects, so that a run can be planned on a machine that has no GPU."""
    return [Gpu(index, f"GPU-{index}") for index in range(count)]


def place(
    wish: Wish,
    found: Sequence[Gpu],
    *,
    given: Sequence[str] | None = None,
    visible: Sequence[str] | None = None,
) -> Placement:
    """Assigns the GPUs of a machine, `found`, to inference, the trainer and the boxes.

    prime-rl sees `given`, the GPUs of the flag `--gpus` (a GPU named twice is shared), else those of the run
    file, else `visible`, the GPUs in `CUDA_VISIBLE_DEVICES`. None: the flag or the variable is not set.
    Raises ConfigError if there are too few GPUs; a named GPU does not exist; `--gpus` and the run file name
    different GPUs; or a box would get a GPU that inference or the trainer uses.
    """
    shown = _visible(wish, found, given, visible)
    need = wish.num_infer + wish.num_train
    if len(shown) < need:
        raise ConfigError(
            f"inference takes {wish.num_infer} GPUs and the trainer {wish.num_train}, but prime-rl sees "
            f"{len(shown)}: {_indices(shown)}",
            where="deployment",
            remedy=f"change num_infer_gpus and num_train_gpus, or name {need} with --gpus",
        )
    inference, trainer = shown[: wish.num_infer], shown[wish.num_infer : need]
    _agree(select(wish.inference, found, where="inference_gpus"), inference, "inference_gpus")
    _agree(select(wish.trainer, found, where="trainer_gpus"), trainer, "trainer_gpus")
    boxes: list[Gpu] = []
    for wanted in wish.boxes:
        boxes += _auto(wish, shown[need:]) if wanted == "auto" else select(wanted, found)
    taken = {*inference, *trainer}
    placed = Placement(
        tuple(inference),
        tuple(trainer),
        tuple(dict.fromkeys(boxes)),
        tuple(gpu for gpu in found if gpu not in taken | set(boxes)),
        tuple(shown),
    )
    twice = [gpu for gpu in placed.boxes if gpu in taken]
    if twice:
        raise ConfigError(
            f"the boxes' GPU {_indices(twice)} is the run's own ({'; '.join(placed.lines())})",
            where="gpus",
            remedy=f"give the boxes others; nobody has: {_indices(placed.left)}",
        )
    return placed


def _visible(
    wish: Wish,
    found: Sequence[Gpu],
    given: Sequence[str] | None,
    visible: Sequence[str] | None,
) -> list[Gpu]:
    if given is not None:
        return [select([name], found, where="--gpus")[0] for name in given]
    if wish.inference or wish.trainer:
        return [
            *select(wish.inference, found, where="inference_gpus"),
            *select(wish.trainer, found, where="trainer_gpus"),
        ]
    if visible is not None:
        return [select([name], found, where="CUDA_VISIBLE_DEVICES")[0] for name in visible]
    named = [name for wanted in wish.boxes if wanted != "auto" for name in wanted]
    theirs = set(select(list(dict.fromkeys(named)), found))
    return [gpu for gpu in found if gpu not in theirs]


def _agree(declared: Sequence[Gpu], actual: Sequence[Gpu], where: str) -> None:
    if declared and set(declared) != set(actual):
        raise ConfigError(
            f"the run file says {_indices(declared)}, and by position they would be {_indices(actual)}",
            where=where,
            remedy="change it, or deployment, or leave out --gpus",
        )


def _auto(wish: Wish, rest: Sequence[Gpu]) -> list[Gpu]:
    """Returns the boxes' GPUs for `gpus = "auto"`: all GPUs that inference and the trainer leave.
    Raises ConfigError if there are none, or if the run file does not name the GPUs of inference and the
    trainer: the process that starts boxes knows only the run file."""
    if not (wish.inference and wish.trainer):
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
