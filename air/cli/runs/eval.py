"""Implements the command `air eval MODEL`: plays tasks with a model, records the episodes, and prints the
scores.

MODEL is one of: the folder of a run (its last checkpoint is played, unless `--step` names another one), a
checkpoint, the folder of a model, a Hugging Face hub id, or the URL of a model endpoint. A run's checkpoint
is played with the run's own settings and tasks, and compared with the model from which the run started. With
--suite, benchmarks are played instead, with the same settings for all models, and published accuracies are
printed beside the measured ones.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from air.cli import flags
from air.cli.heavy_imports import collector_paused
from air.cli.runs import eval_suite

if TYPE_CHECKING:
    from air.train.config.embedded_config import ComputeConfig
    from air.train.evaluation.resumable_evaluation import Evaluation
    from air.train.evaluation.settings import EvaluatedCheckpoint, Settings
    from air.train.evaluation.suites import Data
    from air.train.loop.rollout import Rollout

HELP = (
    "play tasks with a run's checkpoint, a model folder, a hub id or an endpoint; print the scores"
)
EXAMPLES = (
    "air eval outputs/RUN --episodes 16",
    "air eval outputs/RUN --step best",
    "air eval http://127.0.0.1:8000/v1 --model-name MODEL --tasks titanic",
    "air eval merged/agent0 --suite math --data benchmarks",
)
_TURNS, _TOKENS, _CONTEXT = 4, 512, 8192
_EPISODES = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        help="run's folder, checkpoint, model folder, hub id, or http(s)://… of an endpoint",
    )
    parser.add_argument(
        "--step",
        type=_step,
        help="with a run's folder: the checkpoint of this step, or `best` (default: the last one)",
    )
    parser.add_argument("--model-name", help="with an endpoint: the model's name there")
    parser.add_argument(
        "--api-key-var",
        default="OPENAI_API_KEY",
        help="environment variable that holds the API key (OPENAI_API_KEY)",
    )
    flags.add_tasks(
        parser, default=None, note="default: the run's, or all shipped ones without a GPU"
    )
    parser.add_argument(
        "--episodes", type=flags.count, metavar="N", help=f"episodes of each task ({_EPISODES})"
    )
    eval_suite.add_arguments(parser)
    for name, what, usual in (
        ("--max-turns", "turns of an episode", _TURNS),
        ("--max-tokens", "longest reply in tokens", _TOKENS),
        ("--context", "longest episode in tokens", _CONTEXT),
    ):
        parser.add_argument(name, type=flags.count, help=f"{what} (default: the run's, or {usual})")
    parser.add_argument(
        "--temperature", type=float, help="sampling temperature (default: the run's, or 1.0)"
    )
    for name, values in (("--device", "cpu, cuda or cuda:N"), ("--dtype", "float32 or bfloat16")):
        parser.add_argument(name, help=f"{values}, for a model that is loaded (default: the run's)")
    flags.add_runtime(parser, default=None, note="default: the run's, or docker")
    flags.add_mlgym_root(parser)
    parser.add_argument(
        "--no-start",
        action="store_true",
        help="with a run: do not play the model from which it started, for comparison",
    )
    parser.add_argument(
        "--record-dir",
        type=Path,
        help="folder of the evaluation (default: eval-… beside the run, or in outputs/)",
    )
    parser.add_argument(
        "--fresh", action="store_true", help="play all anew, though an equal evaluation is recorded"
    )


def run(args: argparse.Namespace) -> int:
    """Plays the tasks and prints the scores. Returns the exit code: 1 if for some model every episode failed
    because of the machine or air, else 0."""
    from rich.console import Console

    with collector_paused():
        from air.errors import ConfigError
        from air.train.evaluation.settings import find_checkpoint
        from air.train.evaluation.table import table
        from air.train.loop.progress import WIDE

    data = eval_suite.read_data(args)
    found = None if _is_url(args.model) else find_checkpoint(args.model, args.step)
    if args.step is not None and (
        found is None or str(found[0]) != str(Path(args.model).resolve())
    ):
        raise ConfigError(
            f"{args.model} is not a run's folder", where="--step", remedy="leave it out"
        )
    evaluations = _of_run(args, data, *found) if found else [_of_model(args, data)]
    for one in evaluations:  # an unknown task is reported before a model is loaded
        one.settings.check_tasks()
    failed = [rollout for rollout in asyncio.run(_all(args, evaluations)) if not rollout.ok]
    episodes = {one.label: one.episodes() for one in evaluations}
    Console(width=WIDE).print(
        eval_suite.table(args.suite, evaluations)
        if args.suite
        else table(episodes, args.episodes or _EPISODES)
    )
    for one in evaluations:
        print(f"recorded in {one.folder}")
    for error in sorted({rollout.error for rollout in failed}):
        Console(width=WIDE).print(f"failed: {error}", highlight=False, soft_wrap=True)
    return 0 if all(episodes.values()) else 1


def _step(text: str) -> int | str:
    """Parses the value of the flag `--step`: the word `best`, or a number of 1 or more."""
    return text if text == "best" else flags.count(text)


def _compute(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the values of the flags `--device` and `--dtype` that are given, as a dict with the keys
    `device` and `dtype`. Raises ConfigError if a value is wrong, or if the model is an endpoint, which has
    chosen its device itself."""
    from pydantic import ValidationError

    from air.errors import ConfigError
    from air.train.config.embedded_config import ComputeConfig

    given = {key: getattr(args, key) for key in ("device", "dtype") if getattr(args, key)}
    if given and _is_url(args.model):
        raise ConfigError(
            "the endpoint has loaded its model", where=f"--{min(given)}", remedy="leave it out"
        )
    for key, value in given.items():
        try:
            ComputeConfig(**{key: value})
        except ValidationError:
            raise ConfigError(
                f"has no value {value}", where=f"--{key}", remedy="`air eval --help` lists them"
            ) from None
    return given


def _is_url(model: str) -> bool:
    return model.startswith(("http://", "https://"))


def _of_run(
    args: argparse.Namespace, data: list[Data], run: Path, checkpoint: Path
) -> list[Evaluation]:
    """Returns the evaluations to play for the checkpoint `checkpoint` of the run in the folder `run`: one of
    the model from which the run started (unless `--no-start` is given), and one of the checkpoint. Both play
    the benchmarks in `data` or, if `data` is empty, the tasks of the run."""
    from air.errors import MissingError
    from air.train.evaluation.settings import Change, read_evaluated_checkpoint

    changes = {
        "taskset.tasks": ("--tasks", args.tasks),
        "taskset.mlgym-root": ("--mlgym-root", args.mlgym_root and [str(args.mlgym_root)]),
        "agent.max-turns": ("--max-turns", args.max_turns and [str(args.max_turns)]),
        "agent.runtime.type": ("--runtime", args.runtime and [args.runtime]),
    }
    given = {"temperature": args.temperature, "max_tokens": args.max_tokens}
    given |= {"context": args.context}
    evaluated: EvaluatedCheckpoint = read_evaluated_checkpoint(
        run,
        checkpoint,
        {key: Change(flag, values) for key, (flag, values) in changes.items() if values},
        {key: value for key, value in given.items() if value is not None},
        _compute(args),
    )
    models = {checkpoint.name: str(checkpoint)}
    if not args.no_start:
        start = evaluated.start
        if start.startswith(("~", "/", ".")):
            start = str(Path(start).expanduser())
            if not Path(start).is_dir():
                raise MissingError(
                    "the model from which the run started is not here",
                    where=start,
                    remedy="leave out the comparison with --no-start",
                )
        models = {"start": start, **models}
    base, settings = run.parent / f"eval-{run.name}", evaluated.settings
    if data:
        settings = eval_suite.settings(args, data, settings.renderer, settings.compute)
    return [
        _evaluation(args, data, label, model, settings, Path(f"{base}-{label}"), of_run=True)
        for label, model in models.items()
    ]


def _of_model(args: argparse.Namespace, data: list[Data]) -> Evaluation:
    """Returns the evaluation of a model that is not a checkpoint of a run: the folder of a model, a hub id or
    an endpoint. It plays the benchmarks in `data` or, if `data` is empty, the tasks of the flags."""
    from air.errors import ConfigError
    from air.train.config.embedded_config import ComputeConfig

    if args.no_start:
        raise ConfigError(
            f"{args.model} is no checkpoint of a run", where="--no-start", remedy="leave it out"
        )
    compute = ComputeConfig(**_compute(args))
    settings = (
        eval_suite.settings(args, data, None, compute) if data else _own_settings(args, compute)
    )
    model, label = args.model, Path(args.model).name
    if _is_url(model):
        label = args.model_name or asyncio.run(_only_model(model, args.api_key_var))
        model = f"{label} at {args.model}"
    name = re.sub(r"[^\w.-]+", "-", label).strip("-")
    return _evaluation(args, data, label, model, settings, Path("outputs") / f"eval-{name}")


def _own_settings(args: argparse.Namespace, compute: ComputeConfig) -> Settings:
    """Returns the evaluation settings for a model that is not a checkpoint of a run. They come from the
    command's flags, `args`, or from their defaults. `compute` says how this machine computes with the
    model."""
    from air import tasks
    from air.train.evaluation.settings import Settings, research_env
    from air.worlds.sources import is_world

    names = args.tasks or _without_gpu(tasks.available())
    env = research_env(
        names,
        runtime=args.runtime or "docker",
        max_turns=args.max_turns or (None if any(map(is_world, names)) else _TURNS),
        mlgym_root=args.mlgym_root,
    )
    return Settings(
        [env],
        temperature=1.0 if args.temperature is None else args.temperature,
        max_tokens=args.max_tokens or _TOKENS,
        context=args.context or _CONTEXT,
        compute=compute,
    )


def _evaluation(
    args: argparse.Namespace,
    data: list[Data],
    label: str,
    model: str,
    settings: Settings,
    usual: Path,
    *,
    of_run: bool = False,
) -> Evaluation:
    """Returns the object that plays and records the evaluation of `model` with `settings`, and chooses the
    folder for the records. `label` is the model's name in tables. `data` are the user's benchmarks; if it is
    empty, the tasks of `settings` are played.

    The folder is that of the flag `--record-dir` or, if `of_run` is true, its subfolder `label`. Without this
    flag, it is `usual`, with the suite's name appended if benchmarks are played. If this folder has records
    of an evaluation with other settings, or if `--fresh` is given, a number (`-2`, `-3`, …) is appended. Of
    several folders for the same evaluation, it is the last one in which an episode was begun: an evaluation
    that was killed early can leave a folder without any.
    """
    from air.train.evaluation.resumable_evaluation import Evaluation

    make: Callable[..., Evaluation] = Evaluation
    if data:
        from air.train.evaluation.suite_evaluation import SuiteEvaluation

        make, usual = partial(SuiteEvaluation, data=data), Path(f"{usual}-{args.suite}")
    if args.record_dir is not None:
        folder = args.record_dir / label if of_run else args.record_dir
        return make(label, model, settings, folder)
    number = 1
    chosen: Evaluation | None = None
    while True:
        folder = usual if number == 1 else Path(f"{usual}-{number}")
        evaluation = make(label, model, settings, folder)
        if not folder.exists():
            return chosen or evaluation
        if not args.fresh and evaluation.fits() and (chosen is None or evaluation.was_begun()):
            chosen = evaluation
        number += 1


def _without_gpu(names: list[str]) -> list[str]:
    """Returns those of the tasks `names` that need no GPU, and prints the names of the others. (`air eval`
    gives no GPUs to the sandboxes of tasks.)"""
    from air import tasks

    omitted = [name for name in names if tasks.load(name).gpus]
    if omitted:
        print(f"left out, since they need a GPU: {', '.join(omitted)}", file=sys.stderr)
    return [name for name in names if name not in omitted]


async def _all(args: argparse.Namespace, evaluations: list[Evaluation]) -> list[Rollout]:
    """Plays the evaluations one after the other, without the episodes that are already recorded. Returns the
    episodes that were played now."""
    return [rollout for one in evaluations for rollout in await _played(args, one)]


async def _played(args: argparse.Namespace, evaluation: Evaluation) -> list[Rollout]:
    """Plays the episodes of an evaluation that are not recorded yet, and returns them. Prints how many
    episodes are recorded already."""
    from air.train.loop import run_folder

    with run_folder.locked(evaluation.folder), evaluation.opened():
        missing = evaluation.missing(args.episodes or _EPISODES)
        count = sum(missing.values())
        total = sum(evaluation.wanted(args.episodes or _EPISODES).values())
        if count < total:
            print(
                f"{evaluation.label}: {total - count} of {total} episodes are recorded already in "
                f"{evaluation.folder} (--fresh plays all anew)"
            )
        return await _play(args, evaluation, missing) if count else []


async def _play(
    args: argparse.Namespace, evaluation: Evaluation, missing: dict[str, int]
) -> list[Rollout]:
    with collector_paused():
        from air.train.evaluation.local_model import loaded
        from air.train.evaluation.play import endpoint

    settings = evaluation.settings
    if _is_url(args.model):
        ctx = endpoint(
            args.model,
            evaluation.label,
            api_key_var=args.api_key_var,
            temperature=settings.temperature,
            max_tokens=settings.max_tokens,
        )
        return await evaluation.play(ctx, missing, lambda env: env)
    async with loaded(evaluation.model, settings) as model:
        print(model.description)
        return await evaluation.play(model.ctx, missing, model.fill_in_settings)


async def _only_model(url: str, api_key_var: str) -> str:
    import httpx

    from air import json_lines
    from air.errors import UsageError

    try:
        headers = {"Authorization": f"Bearer {os.environ.get(api_key_var, 'EMPTY')}"}
        async with httpx.AsyncClient(timeout=10, headers=headers) as http:
            answer = await http.get(f"{url.rstrip('/')}/models")
            models = [m["id"] for m in json_lines.decode(answer.raise_for_status().content)["data"]]
    except (httpx.HTTPError, KeyError, ValueError) as error:
        raise UsageError(
            f"the endpoint lists no models: {error}", where=url, remedy="check the URL (…/v1)"
        ) from None
    if len(models) != 1:
        raise UsageError(
            f"the endpoint serves {len(models)} models",
            where=url,
            remedy=f"choose one with --model-name: {models}",
        )
    return str(models[0])
