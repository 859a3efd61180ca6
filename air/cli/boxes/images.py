"""Implements the command `air images`: builds, lists or removes the container images of boxes, the sandboxes
for agents' commands."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from air.errors import UsageError

HELP = "build, list or remove the Docker images of the boxes"
EXAMPLES = (
    "air images ls",
    "air images build base",
    "air images build harbor:DIR --jobs 4",
    "air images gc --keep-gb 50",
)
_HARBOR = "harbor:"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="build|ls|gc")
    actions.add_parser("ls", help="list every image that air can build, and those of tasks")
    build = actions.add_parser(
        "build", help="build an image, even if it is current; those of Harbor tasks unless present"
    )
    build.add_argument(
        "name",
        nargs="?",
        default="base",
        help="a folder under images/, a path, or harbor:PATH for all tasks there (base)",
    )
    build.add_argument("--base", help="image to start from, instead of the Dockerfile's (as there)")
    build.add_argument(
        "--ca-bundle",
        type=Path,
        help="PEM file that the build trusts (default: this machine's); not kept in the image",
    )
    build.add_argument(
        "--jobs", type=int, help="images of Harbor tasks that are built at the same time (2)"
    )
    gc = actions.add_parser(
        "gc", help="show which images of tasks to remove, longest unused first; --yes removes them"
    )
    gc.add_argument("--keep-gb", type=float, help="remove until the rest takes at most so much")
    gc.add_argument(
        "--unused-for", type=float, metavar="DAYS", help="remove what was unused for so many days"
    )
    gc.add_argument("--shipped", action="store_true", help="also remove images that air ships")
    gc.add_argument("--yes", action="store_true", help="remove them, instead of showing them")


def run(args: argparse.Namespace) -> int:
    if args.action == "gc":
        return _collect(args)
    if args.action == "ls":
        return _list()
    if args.name.startswith(_HARBOR):
        return _build_harbor(args)
    if args.jobs is not None:
        raise UsageError("--jobs is for harbor:PATH only", remedy="leave it out")
    from air.sandbox.docker import air_images

    print(air_images.build(args.name, base=args.base, ca_bundle=args.ca_bundle))
    return 0


def _list() -> int:
    from air.sandbox.docker import air_images
    from air.sandbox.images import cleanup

    shipped, of_tasks = air_images.ls(), cleanup.stored_images()
    print(f"{'IMAGE':<31} {'STATE':<10} {'SIZE':>8}  DIGEST")
    for image in shipped:
        state = "current" if image.current else "stale" if image.id else "not built"
        size = f"{image.size / 1e6:.0f} MB" if image.id else "-"
        print(f"{image.name:<31} {state:<10} {size:>8}  {image.id[:19] or '-'}")
    for stored in of_tasks:
        state, size = "in use" if stored.busy else "task's", f"{stored.size / 1e6:.0f} MB"
        print(f"{stored.name:<31} {state:<10} {size:>8}  {stored.id[:19]}")
    return 0


def _build_harbor(args: argparse.Namespace) -> int:
    from air.sandbox.images import build
    from air.tasks.sources import harbor_images as images
    from air.tasks.sources.harbor.settings import HarborSettings

    if args.base or args.ca_bundle:
        raise UsageError(
            "--base and --ca-bundle are not for harbor:PATH", remedy="set AIR_CA_BUNDLE instead"
        )
    jobs = 2 if args.jobs is None else args.jobs
    if jobs < 1:
        raise UsageError("--jobs must be a positive integer", where=str(jobs))
    wanted, faults = images.wanted_of(args.name, HarborSettings().folder)
    outcomes = build.ensure_all(wanted, jobs=jobs)
    failed = [outcome for outcome in outcomes if outcome.state == "failed"]
    for state in ("built", "pulled", "present", "failed"):
        if count := sum(outcome.state == state for outcome in outcomes):
            print(f"{state}: {count}")
    for outcome in failed:
        print(build.line(outcome))
    for fault in faults:
        print(f"left out: {fault}")
    return 1 if failed or faults else 0


def _collect(args: argparse.Namespace) -> int:
    from air.sandbox.images import cleanup

    if (args.keep_gb is None) == (args.unused_for is None):
        raise UsageError("gc needs a bound", remedy="name either --keep-gb N or --unused-for DAYS")
    bound = args.keep_gb if args.unused_for is None else args.unused_for
    if not bound >= 0:
        raise UsageError("the bound must be at least 0", where=str(bound))
    by_size = args.keep_gb is not None
    images = cleanup.stored_images(shipped=args.shipped, shares=by_size)
    removed = cleanup.images_to_remove(
        images,
        keep_bytes=None if args.keep_gb is None else args.keep_gb * 1e9,
        unused_seconds=None if args.unused_for is None else args.unused_for * cleanup.DAY,
    )
    code = 0
    for image in removed:
        why = cleanup.remove(image) if args.yes else "would be removed"
        days = (time.time() - image.used) / cleanup.DAY
        state = why or "removed"
        code = 1 if args.yes and why else code
        print(f"{image.name:<31} {image.own / 1e6:>7.0f} MB, unused for {days:.1f} days: {state}")
    total = sum(image.own for image in removed)
    verb = "removed" if args.yes else "to remove; --yes removes them"
    print(f"{len(removed)} of {len(images)} images, {total / 1e9:.2f} GB: {verb}")
    return code
