"""Implements the command `air box`. A box is a sandbox for an agent's commands, usually a container. The
command lists boxes, prints the log of the commands in a box, runs a command in a box, or removes orphans.

An orphan is a box that has expired, or whose owner (the process that started it) has ended.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from air import paths
from air.cli.output import safe
from air.errors import MissingError, UsageError

if TYPE_CHECKING:
    from air.sandbox.ops.listing import LiveBox

HELP = "list boxes, look into one, or remove the boxes of dead runs"
EXAMPLES = (
    "air box ls",
    "air box logs NAME",
    "air box exec NAME -- ls",
    "air box gc",
)
_POLL_SECONDS = 0.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ls|logs|exec|gc")
    actions.add_parser(
        "ls", help="list every box: provider, state, run, task, training step, expiry, owner"
    )
    actions.add_parser("gc", help="remove boxes that have expired or whose owner is dead")
    logs = actions.add_parser(
        "logs", help="show the commands that ran in a box, even after its end"
    )
    logs.add_argument("name", help="a box's name, or its beginning")
    logs.add_argument(
        "-f", "--follow", action="store_true", help="keep printing until the box ends"
    )
    execute = actions.add_parser(
        "exec",
        help="run a command of your own in a live box",
        description="Runs a command in a live container, as its user and in its workspace, beside "
        "the agent's commands and within the same limits. Environment variables of the task are not "
        "set. The exit code is the command's.",
    )
    execute.add_argument(
        "-i", "--interactive", action="store_true", help="connect standard input, e.g. for a shell"
    )
    execute.add_argument("name", help="a box's name, or its beginning")
    execute.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="-- CMD …",
        help="the command and its arguments, after two dashes",
    )


def run(args: argparse.Namespace) -> int:
    actions = {"ls": _ls, "gc": _gc, "logs": _logs, "exec": _exec}
    return actions[args.action](args)


def _gc(_: argparse.Namespace) -> int:
    from air.sandbox.docker import engine
    from air.sandbox.ops import orphans

    removed = orphans.collect()  # works without a container engine for process boxes
    print("\n".join([*removed, f"{len(removed)} removed"]), flush=True)
    if os.environ.get("DOCKER_HOST"):
        engine.client()  # an engine that the user named must answer, or this is an error
    return 0


def _ls(_: argparse.Namespace) -> int:
    from air.sandbox.ops import listing

    boxes, message = listing.folders(), ""
    helpers: list[LiveBox] = []
    try:
        boxes, helpers = listing.containers() + boxes, listing.helpers()
    except MissingError as error:
        message = paths.runnable(f"containers cannot be listed: {error}")
    rows: list[tuple[str, ...]] = [
        ("BOX", "PROVIDER", "STATE", "RUN", "TASK", "STEP", "EXPIRES", "OWNER")
    ]
    rows += [_row(box) for box in boxes]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())
    for helper in helpers:
        print(f"helper container {helper.name}, not a box: {_owner(helper)}")
    if message:
        print(message, file=sys.stderr)
    return 0


def _row(box: LiveBox) -> tuple[str, ...]:
    """Returns the cells of one box in the table that `air box ls` prints. The column STEP is the training
    step for which the box is used; it is known only in a run of the training engine `embedded`."""
    use = {name: safe(str(value)) for name, value in box.use.items() if value not in (None, "")}
    return (
        box.name,
        box.provider,
        box.state,
        use.get("run", box.run),
        use.get("task", "–"),
        use.get("step", "–"),
        "?" if box.seconds_left is None else f"{box.seconds_left / 60:.0f} min",
        _owner(box),
    )


def _owner(box: LiveBox) -> str:
    return f"pid {box.pid}{' (dead)' if box.dead else ''}"


def _exec(args: argparse.Namespace) -> int:
    from air.sandbox.ops import container_exec, listing

    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise UsageError("no command", remedy="`air box exec NAME -- CMD …`")
    box = listing.find(args.name)
    if box.provider == "process":
        raise UsageError(
            f"box {box.name} is a process box: a folder on this machine", remedy=f"cd {box.where}"
        )
    return container_exec.run(box.where, command, interactive=args.interactive)


def _logs(args: argparse.Namespace) -> int:
    from air.sandbox.ops import command_log

    files = command_log.find(args.name)
    if not files:
        raise MissingError(
            f"no box `{args.name}` has a command log",
            where=str(command_log.folder()),
            remedy="see `air box ls`; command logs are kept for some days",
        )
    if len(files) > 1:
        names = ", ".join(file.stem for file in files[:4])
        message = f"the names of {len(files)} boxes begin with `{args.name}`"
        raise UsageError(message, remedy=f"name one, latest first: {names}")
    _show(files[0], follow=args.follow)
    return 0


def _show(file: Path, *, follow: bool) -> None:
    """Prints the command log of a box, `file`: the commands that ran in the box, and their results. If
    `follow` is true, waits for further entries, and prints them until the box ends."""
    from air.json_lines import Mark
    from air.sandbox.contract import ownership
    from air.sandbox.ops import command_log

    mark, owner, kind, dead = Mark(), "", "", False
    while True:
        events, mark = command_log.read(file, mark)
        for event in events:
            kind, owner = event["type"], event.get("owner", owner)
            at = time.strftime("%H:%M:%S", time.localtime(event["t"]))
            print(f"{at}.{int(event['t'] % 1 * 1000):03d}  {event_line(event)}", flush=follow)
        if kind == "end":
            return
        if dead:
            print("the log has no end: the box's owner was killed")
            return
        dead = ownership.is_dead(owner)
        if not dead and not follow:
            return
        if not dead:
            time.sleep(_POLL_SECONDS)


def event_line(event: dict[str, Any]) -> str:
    """Converts an entry of a box's command log, such as a command or its result, to readable text. The text
    has several lines if the command has."""
    kind, number = event["type"], f"#{event.get('n')}"
    if kind == "start":
        limits = " ".join(f"{name}={value:g}" for name, value in event["limits"].items())
        pid = event["owner"].rsplit(":", 2)[-2]
        what = event["image"] if event["provider"] == "docker" else event["workspace"]
        head = f"{event['box']}: {event['provider']} {what}"
        return f"{head}, run {event['run']}, pid {pid}, {limits}"
    if kind == "use":
        facts = (f"{key} {value}" for key, value in event.items() if key not in ("t", "type"))
        return _printable(f"used for: {', '.join(facts)}")
    if kind == "run":
        return f"{number} $ {_printable(event['command'])}"
    if kind == "end":
        cut = f", {event['unwritten']} lines not written" if event["unwritten"] else ""
        return f"end: {event['reason']}; {event['commands']} commands{cut}"
    if "error" in event:
        return f"{number} {_printable(event['error'])}"
    marks = "".join(f", {m.replace('_', ' ')}" for m in ("timed_out", "truncated") if event[m])
    out, err = event["bytes"]
    return f"{number} exit {event['code']} in {event['seconds']:.3g} s, {out} + {err} bytes{marks}"


def _printable(text: str) -> str:
    """Makes text that an agent wrote safe to print: replaces control characters by escapes, and indents every
    line after the first."""
    return safe(text).replace("\n", "\n" + " " * 14)
