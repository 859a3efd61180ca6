"""The entry points of the programs `air`, `rl` and `sft`, which run a command and print errors.

The exit codes are 0 (success), 1 (failure or mismatch), 2 (wrong input from the user), 130 (interrupted) and
141 (broken pipe: the process that reads the output has ended).
"""

from __future__ import annotations

import errno
import importlib
import os
import platform
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib.metadata import version

from air import paths
from air.cli.commands import COMMANDS
from air.cli.output import discard_output
from air.cli.parser import check_command, parser_of
from air.errors import AirError, UsageError


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the program `air COMMAND …`; returns its exit code. `argv` has the arguments after `air`; None:
    those of this process."""
    args = list(sys.argv[1:] if argv is None else argv)
    # The arguments after -- are for another program.
    own = args.index("--") if "--" in args else len(args)
    debug = "--debug" in args[:own]
    args = [arg for arg in args[:own] if arg != "--debug"] + args[own:]
    _spare_loopback_from_proxies()
    return _guarded(lambda: _run(args), debug=debug)


def rl() -> int:
    """Runs the program `rl @ FILE …`, which does the same as `air rl @ FILE …`. Returns its exit code."""
    return main(["rl", *sys.argv[1:]])


def sft() -> int:
    """Runs the program `sft @ FILE …`, which does the same as `air sft @ FILE …`. Returns its exit code."""
    return main(["sft", *sys.argv[1:]])


def _run(args: list[str]) -> int:
    if platform.system() != "Linux":
        raise UsageError(
            f"air runs on Linux, and this is {platform.system()}",
            remedy="use a Linux container or a remote machine",
        )
    name = args[0] if args else ""
    if name == "--version":
        print(f"air {version('air-agent')}")
        return 0
    if name == "help" and len(args) > 1:
        args = [args[1], "--help"]
    elif name in ("help", "-h", "--help", ""):
        print(_overview())
        return 0 if name else 2
    check_command(args[0])
    module = importlib.import_module(COMMANDS[args[0]])
    parser = parser_of(args[0])
    if hasattr(module, "spelled_out"):
        args = [args[0], *module.spelled_out(args[1:])]
    if getattr(module, "TAKES_REST", False):
        known, rest = parser.parse_known_args(args[1:])
        known.rest = rest
        return int(module.run(known))
    return int(module.run(parser.parse_args(args[1:])))


def _overview() -> str:
    """Returns the help text of the program `air`: a list of the commands with one line about each."""
    lines = [f"  {c:<13}{importlib.import_module(m).HELP}" for c, m in COMMANDS.items()]
    run = paths.command()
    return "\n".join(
        [
            f"usage: {run} COMMAND …",
            "",
            "Train language-model agents to do machine-learning research.",
            "",
            "commands:",
            *lines,
            "",
            f"`{run} help COMMAND` describes a command, with examples. `{run} --version` prints the version.",
            "--debug, with every command, shows the traceback of an error.",
        ]
    )


def _spare_loopback_from_proxies() -> None:
    """Adds the loopback addresses to the environment variable `NO_PROXY`, so that HTTP clients do not use a
    proxy for them. air's own servers listen on these addresses, and a proxy cannot reach them."""
    for name in ("NO_PROXY", "no_proxy"):
        hosts = [host for host in os.environ.get(name, "").split(",") if host]
        os.environ[name] = ",".join(dict.fromkeys([*hosts, "127.0.0.1", "localhost", "::1"]))


def _guarded(work: Callable[[], int], *, debug: bool) -> int:
    try:
        code = work()
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader of the output has ended, as with `| head`
        discard_output()
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except AirError as error:
        if debug:
            traceback.print_exc()
        else:
            from air.view.render.clean import clean  # the message may quote an untrusted file

            print(f"error: {paths.runnable(clean(str(error)))}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except ModuleNotFoundError as error:
        if debug or error.name is None or error.name.startswith("air"):
            raise
        extra = "serve" if error.name in ("starlette", "uvicorn") else "train"
        print(
            f"error: {error.name} is not installed — pip install 'air-agent[{extra}]'",
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
