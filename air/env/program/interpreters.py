"""For a program that plays the agent inside a box (a container or a process): finds a Python interpreter in
the box that has the packages which the program needs.

The library `verifiers` provides such a program as one file, with a comment that lists the packages (in the
format of the Python standard PEP 723), and would let `uv` install them at every start. air installs nothing
in boxes: the image `air-harness` contains several Python environments with packages. In a process box (a box
without a container), the program runs with the interpreter that runs air.
"""

from __future__ import annotations

import re
import shlex
import sys
import tomllib

from air.errors import BoxStartError, MissingError
from air.sandbox.contract.box import Box

ENVIRONMENTS = "/opt/air/harness/*/bin/python"
LOOK_SECONDS = 60.0
_HEADER = re.compile(r"(?m)^# /// script$\s(?P<content>(^#(| .*)$\s)+)^# ///$")
_LOOK = """
import sys
from importlib.metadata import PackageNotFoundError, version
from packaging.requirements import Requirement
lacks = []
for text in sys.argv[1:]:
    wanted = Requirement(text)
    try:
        found = version(wanted.name)
    except PackageNotFoundError:
        found = ""
    if not (found and wanted.specifier.contains(found, prereleases=True)):
        lacks.append(text + " (it has " + (found or "none") + ")")
sys.exit(", ".join(lacks) or 0)
"""
_TRY = (
    'look=$1; shift; for p in {}; do "$p" -I -c "$look" "$@" && echo "$p" && exit 0; done; exit 1'
)


def requirements(script: str) -> list[str]:
    """Returns the packages, such as `openai>=1.0`, that the text of a Python program lists in a comment in
    the format of the Python standard PEP 723. Without such a comment, returns an empty list."""
    match = _HEADER.search(script)
    if match is None:
        return []
    lines = match["content"].splitlines()
    header = tomllib.loads("\n".join(line[2:] if line[1:2] == " " else line[1:] for line in lines))
    return [str(one) for one in header.get("dependencies", [])]


async def interpreter(box: Box, packages: list[str]) -> str:
    """Returns the path, inside the box, of the first Python interpreter in `box` that has all of `packages`,
    which are requirements such as `openai>=1.0`. Raises MissingError if there is none, BoxStartError after a
    timeout, and BoxDiedError if the box is gone."""
    own = box.isolation == "process"
    places = shlex.quote(sys.executable) if own else ENVIRONMENTS
    argv = ["sh", "-c", _TRY.format(places), "sh", _LOOK, *packages]
    result = await box.exec(argv, timeout=LOOK_SECONDS)
    if result.ok:
        return result.stdout.decode().strip().splitlines()[-1]
    if result.timed_out:
        raise BoxStartError(
            f"looking for {', '.join(packages)} in a box took over {LOOK_SECONDS:g} s"
        )
    lines = result.stderr.decode("utf-8", "replace").strip().splitlines()
    if own:
        raise MissingError(
            f"this Python lacks packages of the harness: {lines[-1] if lines else packages}",
            where="env.agent.harness.id",
            remedy="install it beside air, or play in containers",
        )
    raise MissingError(
        f"no environment of image {box.spec.image} has the packages of the harness: "
        + ("; ".join(lines) if "(it has" in result.text else ", ".join(packages)),
        where="env.agent.harness.id",
        remedy='run `air images build harness` and set env.image = "air-harness"; '
        "its `*.txt` must name the packages that this verifiers needs",
    )
