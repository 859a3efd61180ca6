"""Writes a family of small Harbor tasks, each of which one shell command solves, for
`bench/learning/harbor.py`.

There are three kinds of tasks: write a word into a file; write the sum of two numbers; change one of several
lines of a settings file. Every task declares one file, on which its `test.sh` grades it in a separate box.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

WORDS = ["apple", "bread", "chair", "drum", "eagle", "fork"]
FILES = ["north", "south", "east", "west"]
NUMBERS = range(1, 8)
KEYS = ["port", "size", "rate", "depth"]
VALUES = ["11", "22", "33", "44", "55", "66"]
SETTINGS = {"port": "8", "size": "5", "rate": "3", "depth": "6"}
"""The settings in the file `app.conf` at the start of a task."""
KINDS = ("write", "sum", "config")
HELD_OUT = 4
"""One of every `HELD_OUT` tasks is held out from training."""
TOML = """\
schema_version = "1.4"
artifacts = ["{file}"]

[task]
name = "family/{name}"

[agent]
timeout_sec = 60

[verifier]
environment_mode = "separate"
timeout_sec = 30

[environment]
docker_image = "air-base"
workdir = "/workspace"
network_mode = "no-network"
cpus = 1
memory_mb = 128
storage_mb = 64
"""
STEP = """
[[steps]]
name = "edit"
verifier = { environment_mode = "separate", timeout_sec = 30 }
"""
TEST = """\
#!/bin/sh
# Earns 1 if the file has exactly the expected content, else 0.
echo 0 > /logs/verifier/reward.txt
if [ "$(cat {file})" = "$(cat /tests/expected)" ]; then echo 1 > /logs/verifier/reward.txt; fi
"""


@dataclass(frozen=True)
class FamilyTask:
    """One task of the family. `slots` are the two values that its instruction and its command contain, such
    as a word and a file's name."""

    kind: str
    slots: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of the task's folder."""
        return "-".join((self.kind, *self.slots))

    @property
    def instruction(self) -> str:
        """The task's text for the agent."""
        a, b = self.slots
        return {
            "write": f"Write the word {a} into the file {b}",
            "sum": f"Write the sum of {a} and {b} into the file sum",
            "config": f"In the file app.conf, set {a} to {b}",
        }[self.kind]

    @property
    def file(self) -> str:
        """The path of the file that is graded."""
        return {"write": self.slots[1], "sum": "sum", "config": "app.conf"}[self.kind]

    @property
    def expected(self) -> str:
        """The content that the graded file must have."""
        a, b = self.slots
        if self.kind == "config":
            return _settings({**SETTINGS, a: b})
        return f"{a if self.kind == 'write' else int(a) + int(b)}\n"

    def command(self, slots: Sequence[str] = ()) -> str:
        """Returns the shell command that solves the task. With other `slots` than the task's own, returns a
        command of the same form for those values."""
        # Blanks on both sides of each slot keep its tokens the same everywhere.
        a, b = slots or self.slots
        return {
            "write": f"echo {a} > {b}",
            "sum": f"expr {a} + {b} > sum",
            "config": f'sed -i "/^ {a} / s/=.*/= {b} /" app.conf',
        }[self.kind]

    def guess(self, rng: random.Random) -> str:
        """Returns the command that solves the task, but with a random value in the place of one of its two
        values, so that it is right only by chance."""
        place = rng.randrange(2)
        slots = list(self.slots)
        slots[place] = str(rng.choice(_CHOICES[self.kind][place]))
        return self.command(slots)

    def files(self) -> dict[str, str]:
        """Returns the contents of every file of the task's folder, by path."""
        step = "steps/edit/" if self.kind == "config" else ""
        files = {
            "task.toml": TOML.format(file=self.file, name=self.name) + (STEP if step else ""),
            f"{step}instruction.md": self.instruction + "\n",
            f"{step}tests/test.sh": TEST.format(file=self.file),
            f"{step}tests/expected": self.expected,
            f"{step}solution/solve.sh": f"#!/bin/sh\n{self.command()}\n",
        }
        return files | ({f"{step}workdir/app.conf": _settings(SETTINGS)} if step else {})


_CHOICES: dict[str, tuple[Sequence[object], Sequence[object]]] = {
    "write": (WORDS, FILES),
    "sum": (NUMBERS, NUMBERS),
    "config": (KEYS, VALUES),
}


def _settings(values: dict[str, str]) -> str:
    return "".join(f" {key} = {value} \n" for key, value in values.items())


def every_task() -> Iterator[FamilyTask]:
    """Yields all tasks of the family, always in the same order."""
    for kind, choices in _CHOICES.items():
        for slots in itertools.product(*choices):
            yield FamilyTask(kind, tuple(map(str, slots)))


def split(seed: int = 0) -> tuple[list[FamilyTask], list[FamilyTask]]:
    """Returns two lists: the tasks for training, and the held-out tasks."""
    drawn = list(every_task())
    random.Random(seed).shuffle(drawn)
    return drawn[len(drawn) // HELD_OUT :], drawn[: len(drawn) // HELD_OUT]


def write(family: Sequence[FamilyTask], root: Path) -> None:
    """Writes the folders of the tasks below `root`. The folders' names begin with a number, so that training,
    which takes tasks in the order of their names, mixes the kinds as `family` does."""
    for number, task in enumerate(family):
        for name, text in task.files().items():
            file = root / f"{number:03}-{task.name}" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            file.chmod(0o755 if name.endswith(".sh") else 0o644)
