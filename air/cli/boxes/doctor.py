"""`air doctor`: whether boxes can work on this machine, and the command that mends what is wrong."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

HELP = "check engine, images, disk, leftovers and GPUs; name the remedy for each"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`--json`."""
    parser.add_argument("--json", action="store_true", help="the findings as one JSON object")


def run(args: argparse.Namespace) -> int:
    """Prints one line a finding; 1 where something failed, 0 else."""
    from air.sandbox.ops import doctor

    found = []
    for finding in doctor.examine():
        found.append(finding)
        if not args.json:
            remedy = f"  → {finding.remedy}" if finding.remedy else ""
            print(f"{finding.state:<5} {finding.check:<16} {finding.seen}{remedy}", flush=True)
    failed = any(finding.state == "fail" for finding in found)
    if args.json:
        print(json.dumps({"ok": not failed, "findings": [asdict(one) for one in found]}, indent=1))
    return 1 if failed else 0
