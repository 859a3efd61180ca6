"""The command `air images`: builds or lists the container images from which boxes start."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "build or list the Docker images of the boxes"
EXAMPLES = (
    "air images ls",
    "air images build base",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="build|ls")
    actions.add_parser("ls", help="list every image that air can build, and whether it is current")
    build = actions.add_parser("build", help="build an image, even if it is current")
    build.add_argument(
        "name", nargs="?", default="base", help="a folder under images/, or a path (base)"
    )
    build.add_argument("--base", help="image to start from, instead of the Dockerfile's (as there)")
    build.add_argument(
        "--ca-bundle",
        type=Path,
        help="PEM file that the build trusts (default: this machine's); not kept in the image",
    )


def run(args: argparse.Namespace) -> int:
    from air.sandbox.docker import images

    if args.action == "build":
        print(images.build(args.name, base=args.base, ca_bundle=args.ca_bundle))
        return 0
    print(f"{'IMAGE':<20} {'STATE':<10} {'SIZE':>8}  DIGEST")
    for image in images.ls():
        state = "current" if image.current else "stale" if image.id else "not built"
        size = f"{image.size / 1e6:.0f} MB" if image.id else "-"
        print(f"{image.name:<20} {state:<10} {size:>8}  {image.id[:19] or '-'}")
    return 0
