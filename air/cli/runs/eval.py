"""The command `air eval MODEL`: plays tasks with a model and prints the scores.

MODEL is a model's folder, a checkpoint, a Hugging Face hub id, or the URL of a model endpoint.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from air.cli import flags

if TYPE_CHECKING:
    from rich.table import Table

    from air.train.loop.rollout import Rollout

HELP = "play tasks with a model folder, a checkpoint, a hub id or an endpoint; print the scores"
EXAMPLES = (
    "air eval outputs/RUN/checkpoints/step_30 --tasks titanic",
    "air eval http://127.0.0.1:8000/v1 --model-name MODEL",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="folder, checkpoint, hub id, or http(s)://… of an endpoint")
    parser.add_argument("--model-name", help="with an endpoint: the model's name there")
    parser.add_argument(
        "--api-key-var",
        default="OPENAI_API_KEY",
        help="environment variable that holds the API key (OPENAI_API_KEY)",
    )
    parser.add_argument(
        "--tasks", nargs="+", metavar="ID", help="default: all shipped tasks without a GPU"
    )
    parser.add_argument("--episodes", type=int, default=8, help="episodes of each task (8)")
    parser.add_argument("--max-turns", type=int, default=4, help="turns of an episode (4)")
    parser.add_argument("--max-tokens", type=int, default=512, help="longest reply in tokens (512)")
    parser.add_argument(
        "--context", type=int, default=8192, help="longest episode in tokens (8192)"
    )
    parser.add_argument("--temperature", type=float, default=1.0, help="sampling temperature (1.0)")
    flags.add_runtime(parser, default="docker", note="default: docker")
    flags.add_mlgym_root(parser)
    parser.add_argument("--record-dir", type=Path, help="folder for the trajectories")


def run(args: argparse.Namespace) -> int:
    """Plays the tasks and prints the scores; returns 1 if every episode failed, else 0."""
    from rich.console import Console

    from air import tasks
    from air.train.loop.evaluate import table_rows
    from air.train.loop.progress import WIDE

    names = args.tasks or _without_gpu(tasks.available())
    for name in names:  # an unknown task is reported before a model is loaded
        tasks.load(name, mlgym_root=args.mlgym_root)
    rollouts = asyncio.run(_play(args, names))
    console = Console(width=WIDE)
    console.print(_table(table_rows(rollouts)))
    failed = [r for r in rollouts if not r.ok]
    for error in sorted({r.error for r in failed}):
        console.print(f"failed: {error}", highlight=False, soft_wrap=True)
    return 1 if len(failed) == len(rollouts) else 0


def _without_gpu(names: list[str]) -> list[str]:
    """Returns the tasks whose boxes need no GPU, because `air eval` leases none; prints the other tasks."""
    from air import tasks

    omitted = [name for name in names if tasks.load(name).gpus]
    if omitted:
        print(f"left out, since they need a GPU: {', '.join(omitted)}", file=sys.stderr)
    return [name for name in names if name not in omitted]


async def _play(args: argparse.Namespace, names: list[str]) -> list[Rollout]:
    from air.train.config.run_config import EmbeddedConfig
    from air.train.loop.evaluate import endpoint, evaluate, research_env, served
    from air.train.model.policy import load

    sampling = {"temperature": args.temperature, "max_tokens": args.max_tokens}
    common = {"runtime": args.runtime, "max_turns": args.max_turns, "record_dir": args.record_dir}
    common |= {"mlgym_root": args.mlgym_root}
    if args.model.startswith(("http://", "https://")):
        model = args.model_name or await _only_model(args.model, args.api_key_var)
        ctx = endpoint(args.model, model, api_key_var=args.api_key_var, **sampling)
        return await evaluate(research_env(names, **common), ctx, args.episodes)
    EmbeddedConfig().set_threads()
    policy = await asyncio.to_thread(load, args.model)
    context = min(args.context, policy.max_length)
    env = research_env(names, tokenizer=policy.name, max_context_tokens=context, **common)
    async with served(policy, max_model_len=context, **sampling) as ctx:
        return await evaluate(env, ctx, args.episodes)


async def _only_model(url: str, api_key_var: str) -> str:
    import httpx

    from air.errors import UsageError

    try:
        headers = {"Authorization": f"Bearer {os.environ.get(api_key_var, 'EMPTY')}"}
        async with httpx.AsyncClient(timeout=10, headers=headers) as http:
            answer = await http.get(f"{url.rstrip('/')}/models")
            models = [m["id"] for m in answer.raise_for_status().json()["data"]]
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


def _table(rows: list[dict[str, Any]]) -> Table:
    from air.train.loop.progress import number, percent, plain_table

    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "base": lambda r: number(r["baseline"], ".3f"),
        "mean": lambda r: number(r["score"], ".3f"),
        "best": lambda r: number(r["best"], ".3f"),
        "test": lambda r: number(r["test"], ".3f"),
        "reward": lambda r: number(r["reward"], "+.3f"),
        "valid": lambda r: percent(r["valid"]),
        "format": lambda r: percent(r["well_formed"]),
        "played": lambda r: f"{r['episodes'] - r['failed']}/{r['episodes']}",
    }
    table = plain_table("scores on the validation split, at the last validate of each episode")
    table.add_column("task", no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(str(row["task"]), *(cell(row) for cell in columns.values()))
    return table
