"""The command `air doctor`: checks whether boxes work on this machine, and prints a remedy for each
problem.
"""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import asdict

from air import paths

HELP = "check engine, images, disk, orphans and GPUs; print a remedy for each problem"
EXAMPLES = (
    "air doctor",
    "air doctor --json",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the findings as one JSON object")


def run(args: argparse.Namespace) -> int:
    """Runs all checks and prints their results (findings); returns 1 if a check failed, else 0."""
    from air.sandbox.ops import doctor

    findings = []
    for finding in doctor.examine():
        findings.append(finding)
        if not args.json:
            remedy = re.sub("^air ", f"{paths.command()} ", finding.remedy)
            remedy = f"  → {remedy}" if remedy else ""
            print(f"{finding.state:<5} {finding.check:<16} {finding.seen}{remedy}", flush=True)
    failed = any(finding.state == "fail" for finding in findings)
    if args.json:
        print(
            json.dumps({"ok": not failed, "findings": [asdict(one) for one in findings]}, indent=1)
        )
    return 1 if failed else 0
