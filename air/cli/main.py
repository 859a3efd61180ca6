"""The entry points of the programs `air`, `rl` and `sft`, which run a command and print errors.

The exit codes are 0 (success), 1 (failure or mismatch), 2 (wrong input from the user) and 130 (interrupted).
"""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import platform
import sys
import traceback
from collections.abc import Callable, Sequence

from air.errors import AirError, UsageError

COMMANDS = {
    "quickstart": "air.cli.runs.quickstart",
    "setup": "air.cli.boxes.setup",
    "rl": "air.cli.runs.rl",
    "sft": "air.cli.runs.sft",
    "eval": "air.cli.runs.eval",
    "demos": "air.cli.runs.demos",
    "report": "air.cli.runs.report",
    "view": "air.cli.episodes.view",
    "show": "air.cli.episodes.show",
    "export": "air.cli.episodes.export",
    "replay": "air.cli.episodes.replay",
    "shell": "air.cli.episodes.shell",
    "trajectories": "air.cli.episodes.trajectories",
    "tasks": "air.cli.tasks",
    "images": "air.cli.boxes.images",
    "box": "air.cli.boxes.box",
    "doctor": "air.cli.boxes.doctor",
    "gpus": "air.cli.boxes.gpus",
}
"""The Python module of each command, with `HELP`, `add_arguments(parser)` and `run(args)` (the exit code)."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the program `air COMMAND …`; returns its exit code. `argv` has the arguments after `air`."""
    args = list(sys.argv[1:] if argv is None else argv)
    # The arguments after -- belong to another program.
    own = args.index("--") if "--" in args else len(args)
    debug = "--debug" in args[:own]
    args = [arg for arg in args[:own] if arg != "--debug"] + args[own:]
    _spare_loopback_from_proxies()
    return _guarded(lambda: _run(args), debug=debug)


def rl() -> int:
    """Runs the program `rl @ FILE …`, which is the same as `air rl @ FILE …`."""
    return main(["rl", *sys.argv[1:]])


def sft() -> int:
    """Runs the program `sft @ FILE …`, which is the same as `air sft @ FILE …`."""
    return main(["sft", *sys.argv[1:]])


def _run(args: list[str]) -> int:
    if platform.system() != "Linux":
        raise UsageError(
            f"air runs on Linux, and this is {platform.system()}",
            remedy="use a Linux container or a remote machine",
        )
    parser = argparse.ArgumentParser(
        prog="air",
        description="Train language-model agents to do machine-learning research.",
        epilog="--debug shows the traceback of an error.",
    )
    parser.add_argument("command", choices=list(COMMANDS), metavar="COMMAND", nargs="?")
    name = args[0] if args else ""
    if name not in COMMANDS:
        parser.epilog = "commands:\n" + "\n".join(
            f"  {c:<13}{importlib.import_module(m).HELP}" for c, m in COMMANDS.items()
        )
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.parse_args(args)
        parser.print_help()
        return 2
    module = importlib.import_module(COMMANDS[name])
    inner = argparse.ArgumentParser(prog=f"air {name}", description=module.HELP)
    module.add_arguments(inner)
    if getattr(module, "TAKES_REST", False):
        known, rest = inner.parse_known_args(args[1:])
        known.rest = rest
        return int(module.run(known))
    return int(module.run(inner.parse_args(args[1:])))


def _spare_loopback_from_proxies() -> None:
    """Sets `NO_PROXY`, because a proxy cannot reach air's own servers on loopback addresses."""
    for name in ("NO_PROXY", "no_proxy"):
        hosts = [host for host in os.environ.get(name, "").split(",") if host]
        os.environ[name] = ",".join(dict.fromkeys([*hosts, "127.0.0.1", "localhost", "::1"]))


def _guarded(work: Callable[[], int], *, debug: bool) -> int:
    try:
        return work()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except AirError as error:
        if debug:
            traceback.print_exc()
        else:
            from air.view.render.clean import clean  # the message may quote an untrusted file

            print(f"error: {clean(str(error))}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except ModuleNotFoundError as error:
        if debug or error.name is None or error.name.startswith("air"):
            raise
        print(
            f"error: {error.name} is not installed — pip install 'air-agent[train]'",
            file=sys.stderr,
        )
        return 2
    except OSError as error:
        if debug or error.errno != errno.ENOSPC:
            raise
        print(
            f"error: the disk is full: {error.filename or 'unknown file'} — free space",
            file=sys.stderr,
        )
        return 2


if __name__ == "__main__":
    sys.exit(main())
