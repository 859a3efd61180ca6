"""Implements the command `air view [RUN…]`: runs a web server, by default on localhost, that shows recorded
episodes in a browser."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

HELP = "look at runs in a browser: curves, episodes step by step, groups, two runs compared"
EXAMPLES = (
    "air view",
    "air view outputs/RUN --port 8600",
)
PORT = 8501
PORTS_TRIED = 20
_SETTINGS = {
    "server.headless": "true",
    "server.fileWatcherType": "none",
    "server.runOnSave": "false",
    "server.showEmailPrompt": "false",
    "server.enableStaticServing": "false",
    "browser.gatherUsageStats": "false",
    "client.toolbarMode": "minimal",
    "client.showErrorLinks": "false",
    "runner.magicEnabled": "false",
    "logger.level": "error",
    "theme.baseFontSize": "14",
    "theme.baseRadius": "6px",
    "theme.light.primaryColor": "#2558c9",
    "theme.dark.primaryColor": "#6f9bff",
    "theme.light.backgroundColor": "#ffffff",
    "theme.dark.backgroundColor": "#0f1216",
    "theme.light.secondaryBackgroundColor": "#f6f7f9",
    "theme.dark.secondaryBackgroundColor": "#171a21",
    "theme.light.textColor": "#1b1f24",
    "theme.dark.textColor": "#e6e8eb",
}
"""Settings for Streamlit, the viewer's web framework: no telemetry, no file watching, and colours."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs",
        nargs="*",
        type=Path,
        metavar="RUN",
        help="a run's folder, or a folder of runs (outputs)",
    )
    parser.add_argument(
        "--port", type=int, help=f"port to listen on (the first free one from {PORT})"
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on (127.0.0.1); everyone who can reach it can read the runs",
    )


def run(args: argparse.Namespace) -> int:
    """Replaces this process by the viewer's web server, which runs until Ctrl-C. Never returns, except by an
    error."""
    from air.errors import MissingError
    from air.view.index.run_discovery import discover

    if importlib.util.find_spec("streamlit") is None:
        raise MissingError(
            "`air view` needs Streamlit, which is not installed",
            remedy="pip install 'air-agent[view]'; `air show` and `air export` work without it",
        )
    folders = [path.resolve() for path in args.runs or [Path("outputs")]]
    runs = discover(folders)
    port = _port(args.host, args.port)
    url = f"http://{args.host}:{port}"
    print(f"{len(runs)} runs at {url} — Ctrl-C stops the viewer", flush=True)
    if os.environ.get("SSH_CONNECTION"):
        print(f"from your own machine: ssh -L {port}:127.0.0.1:{port} HOST", flush=True)
    return _serve(args.host, port, folders)


def _serve(host: str, port: int, folders: Sequence[Path]) -> int:
    import air
    from air.view.render.charts import COLOURS, DARK_COLOURS

    settings = {**_SETTINGS, "server.address": host, "server.port": str(port)}
    for theme, colours in (("light", COLOURS), ("dark", DARK_COLOURS)):
        settings[f"theme.{theme}.chartCategoricalColors"] = json.dumps(colours)
    flags = [f"--{name}={value}" for name, value in settings.items()]
    flags += [f"--server.allowedHosts={name}" for name in _hosts(host)]
    script = Path(air.__file__).parent / "view" / "app" / "entry" / "viewer.py"
    argv = [sys.executable, "-m", "streamlit", "run", str(script), *flags, "--", *map(str, folders)]
    os.execv(sys.executable, argv)  # Ctrl-C must reach Streamlit itself


def _hosts(host: str) -> Sequence[str]:
    """Returns the values of the header `Host` that the viewer accepts if it listens on the address `host`; an
    empty list stands for all values. On a loopback address, only names of this machine are accepted.
    Otherwise a web page could read the runs, by making its own domain resolve to this machine (DNS
    rebinding)."""
    from air.origin_check import is_loopback

    return [host, "localhost", "127.0.0.1", "::1"] if is_loopback(host) else []


def _port(host: str, number: int | None) -> int:
    """Returns the port on which the viewer can listen. This is the port `number`. If `number` is None, it is
    the first free port among the `PORTS_TRIED` ports that begin with `PORT`. Raises ConfigError if no server
    can listen there at the address `host`."""
    from air.errors import ConfigError

    last: OSError | None = None
    for port in [number] if number is not None else range(PORT, PORT + PORTS_TRIED):
        try:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, port))
            return port
        except (OSError, OverflowError) as error:
            last = error if isinstance(error, OSError) else OSError(str(error))
    raise ConfigError(
        f"cannot listen: {last}",
        where=f"--host {host} --port {number or PORT}",
        remedy="give another --port",
    )
