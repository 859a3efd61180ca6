"""Starts a run with prime-rl, an external training program: finds prime-rl's Python interpreter, plans the
run, and runs prime-rl's launcher.

The launcher gets the run file unchanged, and starts `inference`, `orchestrator`, `env-server` and `torchrun`
from the PATH, which begins with the folder of prime-rl's Python. The module `launcher_process` runs the
launcher.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from air.env.failure_breaker import fresh
from air.errors import ConfigError, MissingError
from air.sandbox.pool import gpus
from air.tasks import splits
from air.train.config.overrides import MergedSettings
from air.train.prime_rl import gpu_placement, run_file, schema, throughput
from air.train.prime_rl import throughput_inputs as load
from air.train.prime_rl.launcher_process import supervise, supervise_in_task

PLACE_ENV = "AIR_PRIME_RL"
LAUNCHER = "prime_rl.entrypoints.rl"
NOT_INSTALLED = "prime-rl is not installed here"
NO_GPU = "this machine has no NVIDIA GPU"
HOW_TO_INSTALL = (
    f"{PLACE_ENV}=DIR names a checkout of it whose .venv has air too; scripts/pod.sh makes one"
)
_PROBE = """
import importlib.util as u, json, sys
def there(name):
    try:
        return u.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
print(json.dumps({"prime_rl": there("prime_rl.entrypoints.rl"), "air": there("air")}))
"""


@dataclass(frozen=True)
class Plan:
    """The plan of a run with prime-rl, made before the run starts: its GPUs, and an estimate of its sandboxes
    and duration."""

    view: run_file.PrimeView
    gpus: gpu_placement.Placement | None
    """The GPUs of inference, trainer and boxes (agents' sandboxes). None for a run under SLURM, which uses
    other machines."""
    real: bool
    """Whether `gpus` are GPUs of this machine. If false, this machine has no GPU, and `gpus` are invented for
    a dry run."""
    load: throughput.Throughput

    def lines(self) -> list[str]:
        """Returns the plan as lines of text, to be printed for the user."""
        head = ["engine prime-rl"]
        if self.gpus is None:
            head.append("GPUs: SLURM's nodes have them")
        else:
            head += [f"GPU {line}" for line in self.gpus.lines()]
        if self.gpus is not None and not self.real:
            count = self.view.deployment.gpus_per_node
            head.append(f"(no GPU here: {count} assumed, as deployment.gpus_per_node says)")
        head += [
            f"warning: {name} evaluates worlds with the seeds of the training: set"
            ' env.taskset.purpose = "evaluation" in its [[orchestrator.eval.source]]'
            for name in self.view.eval_sources_with_training_seeds
        ]
        return head + self.load.lines()

    def check_real(self) -> None:
        """Raises MissingError if the planned GPUs are invented, because this machine has no GPU."""
        if self.gpus is not None and not self.real:
            raise MissingError(NO_GPU, remedy="`nvidia-smi` must list some; --dry-run needs none")


def interpreter() -> Path | None:
    """Returns the path of a Python interpreter in which prime-rl is installed, or None if none is known.

    The environment variable `AIR_PRIME_RL` may be the path of an interpreter, or of a checkout of prime-rl
    with a virtual environment `.venv`. If it is set, returns that interpreter, and raises MissingError if the
    interpreter does not exist or lacks prime-rl or air. If it is not set, returns the interpreter of this
    process if prime-rl is installed there.
    """
    setting = os.environ.get(PLACE_ENV, "")
    if not setting:
        return Path(sys.executable) if _has_it_here() else None
    place = Path(setting).expanduser().absolute()
    python = place / ".venv" / "bin" / "python" if place.is_dir() else place
    if not os.access(python, os.X_OK) or python.is_dir():
        raise MissingError(
            f"no interpreter at {python}",
            where=PLACE_ENV,
            remedy="name a checkout that has a .venv",
        )
    result = subprocess.run([python, "-c", _PROBE], capture_output=True, text=True, check=False)
    try:
        has: dict[str, bool] = json.loads(result.stdout)
    except ValueError:
        last = (result.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise MissingError(f"{python} does not run: {last}", where=PLACE_ENV) from None
    for name, remedy in (
        ("prime_rl", "install prime-rl there"),
        ("air", f"install air there: uv pip install --python {python} air's folder"),
    ):
        if not has[name]:
            raise MissingError(f"{python} has no {name}", where=PLACE_ENV, remedy=remedy)
    return python


def make_plan(merged: MergedSettings, flag_gpus: Sequence[str] | None) -> Plan:
    """Checks the settings of a run with prime-rl, `merged`, and returns the plan of the run: its GPUs, boxes
    (agents' sandboxes) and duration.

    `flag_gpus` is the value of the flag `--gpus`, as NVML indices or UUIDs; None: the flag is not given (see
    `gpu_placement.place`). Raises ConfigError if a setting is wrong, GPUs cannot be assigned, an episode
    could never start, the run would take far too long, or most episodes would be dropped because they end too
    late. Raises MissingError if a task or a SLURM template does not exist.
    """
    view = run_file.read(merged)
    placement = None
    if view.slurm is None:
        placement = placed(view, flag_gpus)
    else:
        _check_template(view.slurm)
    inputs = load.of_prime(view, boxes=None if placement is None else len(placement.boxes))
    if reason := throughput.impossible(inputs):
        raise ConfigError(reason, where="plan")
    plan = Plan(view, placement, bool(gpus.inventory()), throughput.plan(inputs))
    if reason := plan.load.absurd():
        raise ConfigError(reason, where="plan")
    return plan


def placed(
    view: run_file.PrimeView, flag_gpus: Sequence[str] | None = None
) -> gpu_placement.Placement:
    """Returns which GPUs of this machine a run gets. If this machine has no GPU, invents some. `flag_gpus`
    and the errors are those of `make_plan`."""
    inventory = gpus.inventory()
    placement = gpu_placement.place(
        run_file.gpu_request(view),
        inventory or gpu_placement.assumed(view.deployment.gpus_per_node),
        flag_gpus=flag_gpus,
        visible=run_file.visible_devices() if inventory else None,
    )
    _check_sharing(view, placement)
    return placement


def real_placement(view: run_file.PrimeView) -> gpu_placement.Placement:
    """Returns which GPUs of this machine a run gets, as `placed` does. Raises MissingError if this machine
    has no GPU, and the errors of `placed`."""
    if not gpus.inventory():
        raise MissingError(NO_GPU, remedy="`nvidia-smi` must list some")
    return placed(view)


def arguments(rest: Sequence[str], merged: MergedSettings, *, dry_run: bool) -> list[str]:
    """Converts `rest`, the arguments of air's command `rl`, to arguments of prime-rl's launcher, and returns
    them. Each run file becomes `@ FILE`; for a file that comes with air, FILE is its full path. All other
    arguments are unchanged. If `dry_run` is true, `--dry-run` is added."""
    files, out, words = iter(merged.files), [], list(rest)
    while words:
        word = words.pop(0)
        if word.startswith("@"):
            if word == "@":
                words.pop(0)
            out += ["@", str(next(files))]
        else:
            out.append(word)
    return [*out, "--dry-run"] if dry_run else out


def environment(python: Path, plan: Plan, breaker: Path) -> dict[str, str]:
    """Returns the environment variables for prime-rl's launcher: those of this process, with four changes.

    - PATH begins with the folder of the interpreter `python`.
    - If the plan has real GPUs, `CUDA_VISIBLE_DEVICES` has the GPUs that prime-rl may see.
    - All worker processes get the same secret, from which the seeds of data splits are computed, so that
      they split the data of a task in the same way.
    - All worker processes get the path `breaker` of a file that counts consecutive failed episodes (see
      `air.env.failure_breaker`). An old file at this path is removed.
    """
    env = dict(os.environ)
    env["PATH"] = f"{python.parent}{os.pathsep}{env.get('PATH', os.defpath)}"
    env |= fresh(breaker)
    env[splits.VARIABLE] = splits.chosen(None).secret  # workers can have other cache folders
    if plan.gpus is not None and plan.real:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(str(gpu.index) for gpu in plan.gpus.visible)
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # the order of GPUs in NVML, which air uses
    return env


def hand_over(python: Path, args: Sequence[str], plan: Plan) -> int:
    """Runs prime-rl's launcher with the interpreter `python`, the arguments `args` and the GPUs of `plan`.
    Waits until the launcher has ended, and returns the exit code of air's command (see
    `launcher_process.supervise`)."""
    with _breaker(plan) as breaker:
        return supervise(_command(python, args), environment(python, plan, breaker), breaker)


async def hand_over_in_task(
    python: Path, args: Sequence[str], plan: Plan, *, keep: Sequence[int] = ()
) -> int:
    """Runs prime-rl's launcher in an asyncio task, with the interpreter `python`, the arguments `args` and
    the GPUs of `plan`. Waits until the launcher has ended, and returns its exit code.
    `launcher_process.supervise_in_task` describes what happens if the task is cancelled. The launcher
    inherits the open files `keep` (file descriptors)."""
    with _breaker(plan) as breaker:
        env = environment(python, plan, breaker)
        return await supervise_in_task(_command(python, args), env, breaker, keep=keep)


def _command(python: Path, args: Sequence[str]) -> list[str]:
    return [str(python), "-m", LAUNCHER, *args]


@contextlib.contextmanager
def _breaker(plan: Plan) -> Iterator[Path]:
    """Context manager: yields the path of a file in which the run's processes count consecutive failed
    episodes. Creates its folder, and removes the file at the end."""
    folder = Path(plan.view.output_dir).expanduser().absolute()
    folder.mkdir(parents=True, exist_ok=True)
    breaker = folder / f".breaker-{secrets.token_hex(4)}"
    try:
        yield breaker
    finally:
        breaker.unlink(missing_ok=True)


def _has_it_here() -> bool:
    try:
        return importlib.util.find_spec(LAUNCHER) is not None
    except ModuleNotFoundError:
        return False


def _check_sharing(view: run_file.PrimeView, placement: gpu_placement.Placement) -> None:
    if placement.shared and view.broadcast != "filesystem":
        raise ConfigError(
            f"vLLM and the trainer share a GPU ({'; '.join(placement.lines())}), and weights would go by "
            f"{view.broadcast}, which takes two",
            where="weight_broadcast",
            remedy='[weight_broadcast] type = "filesystem", or GPUs of their own',
        )


def _check_template(slurm: run_file.SlurmView) -> None:
    if slurm.template_path is None:
        raise ConfigError(
            "prime-rl's own template syncs its environment on the nodes, which takes air out of it",
            where="slurm.template_path",
            remedy="name one of configs/slurm",
        )
    if not Path(slurm.template_path).is_file():
        raise MissingError(
            f"no such file: {slurm.template_path}",
            where="slurm.template_path",
            remedy="it counts from the working directory",
        )


def table_note() -> str:
    """Returns a sentence for the user of a dry run on a machine without prime-rl. It says which checks of the
    run file were made, and which were not."""
    return (
        f"{NOT_INSTALLED}: keys were compared with {schema.origin()}, rules between them were not"
    )
