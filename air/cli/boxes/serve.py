"""The command `air serve sandbox`: serves boxes over the interfaces of other sandboxes."""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path

HELP = "serve boxes over HTTP to the clients of SandboxFusion and E2B"
EXAMPLES = (
    "air serve sandbox",
    "air serve sandbox --port 9000 --max-boxes 16",
    "AIR_SERVE_TOKEN=secret air serve sandbox --host 0.0.0.0",
    "air serve sandbox --image air-base",
)
TOKEN_ENV = "AIR_SERVE_TOKEN"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=["sandbox"], metavar="sandbox", help="what to serve")
    parser.add_argument("--host", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, help="port, or 0 for a free one (default: 8080)")
    parser.add_argument(
        "--token",
        help=f"secret that requests must carry; any --host but loopback needs one (default: {TOKEN_ENV})",
    )
    parser.add_argument("--image", help="image of the boxes (default: air-code)")
    parser.add_argument(
        "--max-boxes", type=int, help="most boxes at once (default: two for each CPU core)"
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
        "--tls-cert", help="certificate file (PEM), for https (default: plain http)"
    )
    parser.add_argument("--tls-key", help="private key file of --tls-cert")
    parser.add_argument(
        "--queue-seconds",
        type=float,
        help="seconds that clients wait beyond the time limits in their requests (default: 10)",
    )


def run(args: argparse.Namespace) -> int:
    """Serves until a signal arrives; then returns 0."""
    from air.config import validate
    from air.serve.e2b.protocol import E2B
    from air.serve.fusion.protocol import Fusion
    from air.serve.server import serve
    from air.serve.settings import ServeConfig

    limits = ("cpus", "memory_mb", "disk_mb", "pids")
    names = [
        *("host", "port", "token", "image", "max_boxes", "warm", "queue_seconds", "datasets"),
        *("fresh_boxes", "domain", "tls_cert", "tls_key"),
    ]
    defaults = ServeConfig().limits.model_dump()
    settings = {name: value for name in names if (value := getattr(args, name)) is not None}
    settings.setdefault("token", os.environ.get(TOKEN_ENV, ""))
    changed = {name: value for name in limits if (value := getattr(args, name)) is not None}
    config = validate(
        ServeConfig, settings | {"limits": defaults | changed}, where="air serve sandbox"
    )
    asyncio.run(serve(config, [Fusion, E2B], say=lambda line: print(line, flush=True)))
    return 0
