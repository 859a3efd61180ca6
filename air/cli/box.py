"""`air box`: the boxes on this machine, and the removal of what dead processes left."""

from __future__ import annotations

import argparse
import time

HELP = "list the boxes on this machine, or remove what dead runs left"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`ls`, `gc`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ls|gc")
    actions.add_parser("ls", help="every container of ours, its state, its owner, its end")
    actions.add_parser("gc", help="remove boxes that are expired or whose owner is dead")


def run(args: argparse.Namespace) -> int:
    """Does it; errors are raised for `air.cli.main` to print."""
    from air.sandbox import cleanup, docker

    if args.action == "gc":
        removed = cleanup.collect()
        print("\n".join([*removed, f"{len(removed)} removed"]))
        return 0
    now = time.time()
    print(f"{'BOX':<18} {'STATE':<9} {'RUN':<20} {'EXPIRES':>9}  OWNER")
    for found in docker.boxes():
        labels = found["Labels"]
        left = f"{(float(labels[cleanup.EXPIRES_LABEL]) - now) / 60:.0f} min"
        dead = " (dead)" if cleanup.is_dead(labels[cleanup.OWNER_LABEL]) else ""
        pid = labels[cleanup.OWNER_LABEL].rsplit(":", 2)[1]
        name = found["Names"][0].lstrip("/")
        run_id = labels.get(cleanup.RUN_LABEL, "")
        print(f"{name:<18} {found['State']:<9} {run_id:<20} {left:>9}  pid {pid}{dead}")
    return 0
