"""Implements the command `air serve`: runs an HTTP server through which other programs use boxes (sandboxes
for commands), tools, tasks, rollouts (episodes played for a trainer), or a model's answers. Most of the
interfaces are those of other projects, such as SandboxFusion, E2B and OpenEnv."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from air.cli import flags
from air.cli.heavy_imports import collector_paused

HELP = (
    "serve boxes (SandboxFusion, E2B), tools, tasks (OpenEnv, ORS), rollouts, or a model's answers"
)
EXAMPLES = (
    "air serve sandbox",
    "air serve sandbox --port 9000 --max-boxes 16",
    "AIR_SERVE_TOKEN=secret air serve sandbox --host 0.0.0.0",
    "air serve sandbox --image air-base",
    "air serve openenv titanic",
    "air serve ors titanic question:gsm8k --port 9000",
    "air serve rollouts --max-episodes 64",
    "air serve tools code_interpreter --max-sessions 64",
    "air serve tools tools.toml --model-url http://127.0.0.1:8000/v1 --model MODEL",
    "air serve evaluate outputs/RUN",
    "air serve evaluate outputs/RUN --tools calculator",
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
_TOOLS = (
    *("tools", "public", "max_sessions", "idle_seconds", "session_seconds", "queue_seconds"),
    *("max_queued", "max_actions", "model_url", "model", "format", "call_ends", "max_turns"),
    "model_seconds",
)
_TOOL_NAMES = "names of tools, FILE.py:NAME, or a TOML file with `tools = […]`"
_EVALUATE = (
    *("model", "model_name", "tools", "format", "provider"),
    *("temperature", "top_p", "max_tokens", "context", "k", "equality", "seed", "files"),
    *("max_requests", "max_queued"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(
        dest="what", required=True, metavar="sandbox|openenv|ors|rollouts|tools|evaluate"
    )
    for name, text, add in (
        ("sandbox", "boxes, for the clients of SandboxFusion and E2B", _add_sandbox),
        ("openenv", "episodes of tasks, for the clients of OpenEnv", _add_episodes),
        ("ors", "episodes of tasks, for the clients of ORS (Open Reward Standard)", _add_episodes),
        ("rollouts", "rollouts: episodes of tasks, played with your model", _add_rollouts),
        (
            "tools",
            "tools, for the clients of verl-tool, and chats whose model calls them",
            _add_tools,
        ),
        ("evaluate", "a model's answers to proposed questions, as in co-evolution", _add_evaluate),
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
        help="seconds until an answer that its client does not take, or takes too slowly, is dropped "
        "(default: 60)",
    )
    parser.add_argument(
        "--keep-alive-seconds",
        type=float,
        help="seconds until a connection without requests is closed (default: 600)",
    )
    parser.add_argument(
        "--max-bodies-mb",
        type=float,
        help="MiB of all requests' bodies together, and of all answers not taken (default: 1024)",
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
    flags.add_task_root(parser, dest="task_roots")
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


def _add_tools(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "tools",
        nargs="+",
        metavar="TOOL",
        help=_TOOL_NAMES,
    )
    parser.add_argument(
        "--public", nargs="+", metavar="NAME", help="`extra_fields` that tools may read"
    )
    parser.add_argument(
        "--max-sessions",
        type=int,
        help="most trajectories and chats at once, each with a box if the tools need one (default: 32)",
    )
    parser.add_argument(
        "--idle-seconds",
        type=float,
        help="seconds without a request after which a trajectory ends (default: 900)",
    )
    parser.add_argument(
        "--session-seconds", type=float, help="seconds after which it ends anyway (default: 3600)"
    )
    parser.add_argument(
        "--queue-seconds", type=float, help="seconds that a request waits for room (default: 60)"
    )
    parser.add_argument(
        "--max-queued", type=int, help="most requests that wait for room (default: 1000)"
    )
    parser.add_argument(
        "--max-actions", type=int, help="most actions of one request (default: 1024)"
    )
    parser.add_argument(
        "--model-url", metavar="URL", help="the model's endpoint, for chats and completions"
    )
    parser.add_argument("--model", metavar="NAME", help="the model's name there")
    parser.add_argument("--format", help="action format of chats (default: tool_calls)")
    parser.add_argument(
        "--call-ends",
        nargs="+",
        metavar="TEXT",
        help="strings after which a call in a completed text is performed (default: those of the tools)",
    )
    parser.add_argument("--max-turns", type=int, help="most replies in one chat (default: 8)")
    parser.add_argument(
        "--model-seconds", type=float, help="seconds for one reply of the model (default: 600)"
    )


def _add_evaluate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", help="run's folder, checkpoint, model folder, hub id, or an endpoint's URL"
    )
    parser.add_argument("--model-name", help="with an endpoint: the model's name there")
    parser.add_argument(
        "--tools",
        nargs="*",
        metavar="TOOL",
        help=f"{_TOOL_NAMES}; without a name: none (default: those of the run's tasks)",
    )
    parser.add_argument("--format", help="action format (default: the run's, or tool_calls)")
    parser.add_argument(
        "--provider",
        choices=["docker", "process"],
        help="kind of box of tools that need one (default: the run's, or docker)",
    )
    parser.add_argument(
        "--temperature", type=float, help="sampling temperature (default: the run's, or 1)"
    )
    parser.add_argument(
        "--top-p", type=float, help="sampling setting (default: the model server's)"
    )
    parser.add_argument(
        "--max-tokens", type=int, help="longest reply in tokens (default: the run's, or 1024)"
    )
    parser.add_argument(
        "--context", type=int, help="longest episode in tokens (default: the run's, or 8192)"
    )
    parser.add_argument(
        "--equality",
        choices=["math", "forms"],
        help="compare answers as mathematics (default), or only by their canonical forms",
    )
    parser.add_argument("--k", type=int, help="answers to each question (default: 10)")
    parser.add_argument("--seed", type=int, help="seed of all answers (default: 0)")
    parser.add_argument(
        "--files",
        type=Path,
        metavar="DIR",
        help="folder with the files of Agent0's requests `GET /hello?name=FILE` (default: no such requests)",
    )
    parser.add_argument("--max-requests", type=int, help="most requests at once (default: 4)")
    parser.add_argument("--max-queued", type=int, help="most requests that wait (default: 256)")


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
    """Runs the server that the arguments describe. Returns the exit code 0 after the server was stopped by
    SIGINT or SIGTERM."""
    names, serve = _KINDS[args.what]
    given = (*_LISTEN, *names)
    settings = {name: value for name in given if (value := getattr(args, name)) is not None}
    settings.setdefault("token", os.environ.get(TOKEN_ENV, ""))
    serve(args, settings, f"air serve {args.what}")
    return 0


def _serve_sandbox(args: argparse.Namespace, settings: dict[str, Any], where: str) -> None:
    with collector_paused():
        from air.config import validate
        from air.serve.e2b.protocol import E2B
        from air.serve.fusion.protocol import Fusion
        from air.serve.http.server import serve
        from air.serve.http.settings import ServeConfig

    changed = {name: value for name in _LIMITS if (value := getattr(args, name)) is not None}
    limits = ServeConfig().limits.model_dump() | changed
    boxes = validate(ServeConfig, settings | {"limits": limits}, where=where)
    asyncio.run(serve(boxes, [Fusion, E2B], say=_say))


def _serve_episodes(args: argparse.Namespace, settings: dict[str, Any], where: str) -> None:
    with collector_paused():
        from air.config import validate
        from air.serve.episodes.server import serve_episodes
        from air.serve.episodes.settings import EpisodesConfig
        from air.serve.openenv.protocol import OpenEnv
        from air.serve.ors.protocol import Ors

    episodes = validate(EpisodesConfig, settings, where=where)
    protocol = OpenEnv if args.what == "openenv" else Ors
    asyncio.run(serve_episodes(episodes, [protocol], say=_say))


def _serve_rollouts(args: argparse.Namespace, settings: dict[str, Any], where: str) -> None:
    with collector_paused():
        from air.config import validate
        from air.serve.rollouts.server import serve_rollouts
        from air.serve.rollouts.settings import RolloutsConfig

    asyncio.run(serve_rollouts(validate(RolloutsConfig, settings, where=where), say=_say))


def _serve_tools(args: argparse.Namespace, settings: dict[str, Any], where: str) -> None:
    with collector_paused():
        from air.config import validate
        from air.serve.tools.chat import Chat
        from air.serve.tools.completions import Completions
        from air.serve.tools.server import serve_tools
        from air.serve.tools.settings import ToolsConfig
        from air.serve.tools.verl_tool_protocol import Observations

    config = validate(ToolsConfig, settings, where=where)
    protocols = [Observations, Chat, Completions] if config.model_url else [Observations]
    asyncio.run(serve_tools(config, protocols, say=_say))


def _serve_evaluate(args: argparse.Namespace, settings: dict[str, Any], where: str) -> None:
    with collector_paused():
        from air.config import validate
        from air.serve.evaluate.files_protocol import QuestionFiles
        from air.serve.evaluate.server import Evaluate, serve_evaluate
        from air.serve.evaluate.settings import EvaluateConfig

    config = validate(EvaluateConfig, settings, where=where)
    protocols = [Evaluate] if config.files is None else [Evaluate, QuestionFiles]
    asyncio.run(serve_evaluate(config, protocols, say=_say))


_Serve = Callable[[argparse.Namespace, dict[str, Any], str], None]
_KINDS: dict[str, tuple[tuple[str, ...], _Serve]] = {
    "sandbox": (_SANDBOX, _serve_sandbox),
    "openenv": (_EPISODES, _serve_episodes),
    "ors": (_EPISODES, _serve_episodes),
    "rollouts": (_ROLLOUTS, _serve_rollouts),
    "tools": (_TOOLS, _serve_tools),
    "evaluate": (_EVALUATE, _serve_evaluate),
}
"""For each kind of server that `air serve` can start (such as `sandbox`): the names of the settings that have
flags, and the function that runs the server."""


def _say(line: str) -> None:
    print(line, flush=True)
