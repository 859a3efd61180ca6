"""The programming languages of SandboxFusion, with the commands that compile and run their programs in a box
(container).

A server supports those languages whose compilers and interpreters are in its container image.
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
"""The names of all languages of SandboxFusion. air supports only those of them that are in `LANGUAGES`, and
`c` in addition."""
_PROGRAM = "air_program"
# Debian's packages of Go and Node lie in /usr/share. Without modules, Go looks for nothing on the network.
_GO = {
    "GO111MODULE": "off",
    "GOCACHE": "/workspace/.go",
    "GOPATH": "/workspace/.gopath:/usr/share/gocode",
}
# Java ignores entries of the class path that do not exist.
_JARS = ".:*:/usr/share/java/javatuples.jar"
_NODE = {"NODE_PATH": "/usr/share/nodejs"}


@dataclass(frozen=True)
class Language:
    """The commands that compile and run programs of one language. In a command, `{file}` stands for the
    program's file."""

    file: str
    """The program's file name in the workspace."""
    run: tuple[str, ...]
    """The command that runs the program, as a list of arguments (no shell is used)."""
    compile: tuple[str, ...] = ()
    """The command that compiles the program, as a list of arguments (no shell is used); empty if none is
    needed."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables for the commands that compile and run the program."""
    needs: tuple[str, ...] = ()
    """Further shell commands that must succeed in an image that supports this language. That the programs in
    `compile` and `run` exist is tested anyway."""

    def check(self) -> str:
        """Returns a shell command with which a server tests whether an image supports this language: it
        succeeds in a box (container) that was started from such an image."""
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
"""The commands for each language that air can run, by SandboxFusion's name of the language. For the other
languages in `NAMES`, air has no commands."""


def source(language: str, code: str) -> str:
    """Returns the text to write into a program's file: `code` itself, or, for PHP code without an opening
    tag, `<?php` and the code."""
    if language == "php" and not re.search(r"<\?(php|=)", code):
        return f"<?php\n{code}"
    return code


async def available(box: Box) -> tuple[str, ...]:
    """Returns the names of the languages that the image of `box` (a container) supports. Raises BoxStartError
    if the check fails."""
    tests = [f"if {each.check()}; then echo {name}; fi" for name, each in LANGUAGES.items()]
    result = await box.exec("{\n" + "\n".join(tests) + "\n} | grep -v /", timeout=60)
    if result.timed_out or result.code > 1:
        raise BoxStartError(f"the languages of the image cannot be listed: {result.text.strip()}")
    return tuple(name for name in result.stdout.decode().split() if name in LANGUAGES)
