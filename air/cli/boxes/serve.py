"""The command `air serve`: serves boxes, or episodes of tasks, over the interfaces of other projects."""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path

HELP = "serve boxes (SandboxFusion, E2B), tasks (OpenEnv, ORS), or rollouts of tasks"
EXAMPLES = (
    "air serve sandbox",
    "air serve sandbox --port 9000 --max-boxes 16",
    "AIR_SERVE_TOKEN=secret air serve sandbox --host 0.0.0.0",
    "air serve sandbox --image air-base",
    "air serve openenv titanic",
    "air serve ors titanic question:gsm8k --port 9000",
    "air serve rollouts --max-episodes 64",
)
TOKEN_ENV = "AIR_SERVE_TOKEN"


_LISTEN = (
    *("host", "port", "token", "tls_cert", "tls_key", "max_connections"),
    *("head_seconds", "body_seconds", "answer_seconds", "keep_alive_seconds", "max_bodies_mb"),
)
_SANDBOX = (
    *("image", "max_boxes", "warm", "queue_seconds", "datasets", "fresh_boxes", "domain"),
    *("max_queued", "max_paused", "max_snapshots"),
)
_LIMITS = ("cpus", "memory_mb", "disk_mb", "pids")
_EPISODES = (
    *("tasks", "task_roots", "mlgym_root", "provider", "max_sessions", "grader_boxes"),
    *("max_turns", "seconds", "idle_seconds", "seeds", "gpus"),
)


_ROLLOUTS = ("max_episodes", "max_rollouts", "task_roots", "mlgym_root", "provider")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(
        dest="what", required=True, metavar="sandbox|openenv|ors|rollouts"
    )
    for name, text, add in (
        ("sandbox", "boxes, for the clients of SandboxFusion and E2B", _add_sandbox),
        ("openenv", "episodes of tasks, for the clients of OpenEnv", _add_episodes),
        ("ors", "episodes of tasks, for the clients of ORS (Open Reward Standard)", _add_episodes),
        ("rollouts", "rollouts: episodes of tasks, played with your model", _add_rollouts),
    ):
        kind = kinds.add_parser(name, help=text, description=f"Serve {text}.")
        add(kind)
        _add_listen(kind)


def _add_listen(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, help="port, or 0 for a free one (default: 8080)")
    parser.add_argument(
        "--token",
        help=f"secret that requests must carry; any --host but loopback needs one (default: {TOKEN_ENV})",
    )
    parser.add_argument(
        "--tls-cert", help="certificate file (PEM), for https (default: plain http)"
    )
    parser.add_argument("--tls-key", help="private key file of --tls-cert")
    parser.add_argument("--max-connections", type=int, help="most open connections (default: 2000)")
    parser.add_argument(
        "--head-seconds", type=float, help="seconds for the headers of a request (default: 30)"
    )
    parser.add_argument(
        "--body-seconds",
        type=float,
        help="seconds for the body of a request, and one more for each 64 KiB (default: 30)",
    )
    parser.add_argument(
        "--answer-seconds",
        type=float,
        help="seconds until an answer that its client does not take is dropped (default: 60)",
    )
    parser.add_argument(
        "--keep-alive-seconds",
        type=float,
        help="seconds until a connection without requests is closed (default: 600)",
    )
    parser.add_argument(
        "--max-bodies-mb", type=float, help="MiB of all requests' bodies together (default: 1024)"
    )


def _add_episodes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tasks", nargs="+", metavar="TASK", help="ids of the tasks to offer")
    _add_task_sources(parser)
    parser.add_argument(
        "--max-sessions",
        type=int,
        help="most clients at once, each with a box for a research task (default: two for each CPU core)",
    )
    parser.add_argument("--grader-boxes", type=int, help="most graders at once (default: 2)")
    parser.add_argument(
        "--max-turns", type=int, help="actions of an episode (default: the task's, or 50)"
    )
    parser.add_argument(
        "--seconds", type=float, help="time limit of an episode (default: the task's)"
    )
    parser.add_argument(
        "--idle-seconds",
        type=float,
        help="seconds without a message after which a client's episode ends (default: 900)",
    )
    parser.add_argument(
        "--seeds", type=int, help="episodes of each task in the list of a split (default: 100)"
    )
    parser.add_argument("--gpus", nargs="+", metavar="GPU", help="GPUs for boxes (default: none)")


def _add_task_sources(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--task-roots", nargs="+", type=Path, metavar="DIR", help="folders with tasks of your own"
    )
    parser.add_argument("--mlgym-root", type=Path, metavar="DIR", help="checkout of MLGym")
    parser.add_argument(
        "--provider", choices=["docker", "process"], help="kind of box (default: docker)"
    )


def _add_rollouts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-episodes", type=int, help="most episodes at once, of all requests (default: 32)"
    )
    parser.add_argument(
        "--max-rollouts", type=int, help="most episodes of one request (default: 4096)"
    )
    _add_task_sources(parser)


def _add_sandbox(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--image", help="image of the boxes (default: air-code)")
    parser.add_argument(
        "--max-boxes", type=int, help="most boxes at once (default: two for each CPU core)"
    )
    parser.add_argument(
        "--max-queued", type=int, help="most requests that wait for a box (default: 1000)"
    )
    parser.add_argument(
        "--max-paused",
        type=int,
        help="most paused E2B sandboxes that hold a box (default: half of --max-boxes)",
    )
    parser.add_argument(
        "--max-snapshots", type=int, help="most snapshots of E2B sandboxes (default: 256)"
    )
    parser.add_argument("--warm", type=int, help="boxes that wait, started (default: 2)")
    parser.add_argument(
        "--fresh-boxes",
        action="store_const",
        const=True,
        help="give each request a new box, instead of one that was reset after another request",
    )
    parser.add_argument("--cpus", type=float, help="CPU cores of a box (default: 1)")
    parser.add_argument("--memory-mb", type=int, help="memory of a box in MiB (default: 2048)")
    parser.add_argument("--disk-mb", type=int, help="workspace of a box in MiB (default: 256)")
    parser.add_argument("--pids", type=int, help="processes of a box (default: 256)")
    parser.add_argument(
        "--datasets", type=Path, metavar="DIR", help="folder of datasets (see docs/serve.md)"
    )
    parser.add_argument(
        "--domain", help="domain of E2B sandboxes' ports, PORT-ID.DOMAIN (default: localhost:PORT)"
    )
    parser.add_argument(
        "--queue-seconds",
        type=float,
        help="seconds that clients wait beyond the time limits in their requests (default: 10)",
    )


def run(args: argparse.Namespace) -> int:
    """Serves until a signal arrives; then returns 0."""
    from air.config import validate

    names = _LISTEN + {"sandbox": _SANDBOX, "rollouts": _ROLLOUTS}.get(args.what, _EPISODES)
    settings = {name: value for name in names if (value := getattr(args, name)) is not None}
    settings.setdefault("token", os.environ.get(TOKEN_ENV, ""))
    where = f"air serve {args.what}"

    def say(line: str) -> None:
        print(line, flush=True)

    if args.what == "sandbox":
        from air.serve.e2b.protocol import E2B
        from air.serve.fusion.protocol import Fusion
        from air.serve.server import serve
        from air.serve.settings import ServeConfig

        changed = {name: value for name in _LIMITS if (value := getattr(args, name)) is not None}
        limits = ServeConfig().limits.model_dump() | changed
        boxes = validate(ServeConfig, settings | {"limits": limits}, where=where)
        asyncio.run(serve(boxes, [Fusion, E2B], say=say))
        return 0
    if args.what == "rollouts":
        from air.serve.rollouts.protocol import serve_rollouts
        from air.serve.rollouts.settings import RolloutsConfig

        asyncio.run(serve_rollouts(validate(RolloutsConfig, settings, where=where), say=say))
        return 0
    from air.serve.episodes.server import serve_episodes
    from air.serve.episodes.settings import EpisodesConfig
    from air.serve.openenv.protocol import OpenEnv
    from air.serve.ors.protocol import Ors

    episodes = validate(EpisodesConfig, settings, where=where)
    asyncio.run(serve_episodes(episodes, [OpenEnv if args.what == "openenv" else Ors], say=say))
    return 0
