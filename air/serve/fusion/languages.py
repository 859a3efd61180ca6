"""The languages that SandboxFusion names, and the commands that compile and run each of them in a box.

A server supports only those languages whose compilers and interpreters are in its image.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from air.errors import BoxStartError
from air.sandbox.contract.box import Box

NAMES = (
    *(
        "python",
        "cpp",
        "nodejs",
        "go",
        "go_test",
        "java",
        "php",
        "csharp",
        "bash",
        "typescript",
        "sql",
    ),
    *("rust", "cuda", "lua", "R", "perl", "D_ut", "ruby", "scala", "julia", "pytest", "junit"),
    *("kotlin_script", "jest", "verilog", "python_gpu", "lean", "swift", "racket"),
)
"""The languages of SandboxFusion. Air adds `c`."""
_PROGRAM = "air_program"
# Debian's packages of Go and Node lie in /usr/share. Without modules, Go looks for nothing on the network.
_GO = {
    "GO111MODULE": "off",
    "GOCACHE": "/workspace/.go",
    "GOPATH": "/workspace/.gopath:/usr/share/gocode",
}
# Java takes no notice of a file that does not exist.
_JARS = ".:*:/usr/share/java/javatuples.jar"
_NODE = {"NODE_PATH": "/usr/share/nodejs"}


@dataclass(frozen=True)
class Language:
    """How programs of one language run. The commands name the program's file as `{file}`."""

    file: str
    """The name of the program's file in the workspace."""
    run: tuple[str, ...]
    """The command that runs the program, without a shell."""
    compile: tuple[str, ...] = ()
    """The command that compiles the program; empty if it needs none."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of both commands."""
    needs: tuple[str, ...] = ()
    """Shell tests that must succeed in the image, besides that the commands' programs exist there."""

    def check(self) -> str:
        """Returns a shell command that succeeds in a box whose image has this language."""
        programs = {command[0] for command in (self.compile, self.run) if command}
        there = [f"command -v {name}" for name in sorted(programs) if not name.startswith("./")]
        return " && ".join([*there, *self.needs])


def _language(suffix: str, run: str, compiled: str = "", **more: object) -> Language:
    file = f"{_PROGRAM}{suffix}"
    commands = [tuple(shlex.split(text.format(file=file))) for text in (run, compiled)]
    return Language(file, *commands, **more)  # type: ignore[arg-type]


LANGUAGES: dict[str, Language] = {
    "python": _language(".py", "python3 {file}"),
    "pytest": _language(
        ".py", "python3 -m pytest -p no:cacheprovider {file}", needs=('python3 -c "import pytest"',)
    ),
    "bash": _language(".sh", "bash {file}"),
    "c": _language(".c", "./program", "gcc -std=c17 {file} -o program -lm -lpthread"),
    "cpp": _language(".cpp", "./program", "g++ -std=c++17 {file} -o program -lpthread"),
    "go": _language(".go", "./program", "go build -o program {file}", env=_GO),
    "go_test": _language("_test.go", "go test {file}", env=_GO),
    "java": Language(
        "Main.java", ("java", "-cp", _JARS, "-ea", "Main"), ("javac", "-cp", _JARS, "Main.java")
    ),
    "nodejs": _language(".js", "node {file}", env=_NODE),
    "typescript": _language(
        ".ts",
        "bash -c 'esbuild {file} --log-level=error --platform=node --format=cjs --outfile=air_program.js && "
        "exec node air_program.js'",
        env=_NODE,
        needs=("command -v esbuild", "command -v node"),
    ),
    "rust": _language(".rs", "./program", "rustc {file} -o program"),
    "lua": _language(".lua", "lua {file}"),
    "perl": _language(".pl", "perl {file}"),
    "php": _language(".php", "php -f {file}"),
    "ruby": _language(".rb", "ruby {file}"),
    "sql": _language(".sql", "sqlite3 -batch -bail :memory: '.read {file}'"),
    "R": _language(".R", "Rscript {file}"),
    "julia": _language(".jl", "julia {file}"),
    "racket": _language(".rkt", "racket {file}"),
    "swift": _language(".swift", "./program", "swiftc {file} -o program"),
    "D_ut": _language(".d", "./program", "dmd {file} -unittest -of=program"),
    "kotlin_script": _language(".kts", "kotlin {file}"),
    "verilog": _language(
        ".sv",
        "vvp -n test.vvp",
        "iverilog -Wall -Winfloop -Wno-timescale -g2012 -s tb -o test.vvp {file}",
    ),
}
"""The settings of each language. A language of `NAMES` that is missing here cannot run in any image."""


def source(language: str, code: str) -> str:
    """Returns the text of a program's file."""
    if language == "php" and not re.search(r"<\?(php|=)", code):
        return f"<?php\n{code}"
    return code


async def available(box: Box) -> tuple[str, ...]:
    """Returns the languages that the image of `box` has. Raises BoxStartError if it cannot be found out."""
    tests = [f"if {each.check()}; then echo {name}; fi" for name, each in LANGUAGES.items()]
    result = await box.exec("{\n" + "\n".join(tests) + "\n} | grep -v /", timeout=60)
    if result.timed_out or result.code > 1:
        raise BoxStartError(f"the languages of the image cannot be listed: {result.text.strip()}")
    return tuple(name for name in result.stdout.decode().split() if name in LANGUAGES)
