"""Defines `Folder`: one Harbor task in few lines, and writes it as the folder that Harbor reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent

from tests.harbor.images import DATA

TOML = """
[agent]
timeout_sec = 120
user = "agent"

[verifier]
environment_mode = "separate"
timeout_sec = 60

[environment]
cpus = 1
memory_mb = 512
network_mode = "no-network"
"""
"""The settings of a task that names none."""
BEGIN = """#!/bin/bash
# Earns 1 if every command below succeeds, else 0.
set -e
echo 0 > /logs/verifier/reward.txt
"""
END = "echo 1 > /logs/verifier/reward.txt\n"
UNTRUSTED = """chmod 700 /logs/verifier /tests
# Runs what the agent wrote as a user that can neither read the tests nor write the reward.
untrusted() { timeout 20 setpriv --reuid=65534 --regid=65534 --clear-groups "$@" < /dev/null; }
"""


@dataclass(frozen=True)
class Folder:
    """One Harbor task."""

    name: str
    """The folder's name."""
    instruction: str
    """What the agent reads."""
    solve: str
    """The reference solution, a script for bash."""
    checks: str = ""
    """Commands that all succeed if the work is good; `test.sh` is made of them."""
    test: str = ""
    """The whole of `test.sh`, instead of `checks`."""
    runs: bool = False
    """Whether `checks` run programs of the agent, by the function `untrusted`."""
    settings: str = TOML
    """The file `task.toml`, without its name and version."""
    artifacts: str = ""
    """The value of the key `artifacts`, as TOML; empty: none are declared."""
    version: str = 'schema_version = "1.4"'
    """The first line of `task.toml`."""
    image: Mapping[str, str] = field(default_factory=lambda: DATA)
    """The files of `environment/`."""
    files: Mapping[str, str] = field(default_factory=dict)
    """More files, such as `tests/expected.txt` or `steps/one/instruction.md`."""
    caught: tuple[str, ...] = ()
    """The findings of which the gate must name at least one; empty for a clean task."""
    twin: str = ""
    """The name of the clean task with the same work; empty if there is none."""

    def all_files(self) -> dict[str, str]:
        """Returns every file of the folder by its path."""
        files = {f"environment/{name}": text for name, text in self.image.items()}
        artifacts = f"artifacts = {self.artifacts}\n" if self.artifacts else ""
        head = f'{self.version}\n{artifacts}\n[task]\nname = "small/{self.name}"\n'
        files["task.toml"] = head + self.settings
        if self.instruction:
            files["instruction.md"] = dedent(self.instruction).strip() + "\n"
            files["solution/solve.sh"] = script(self.solve)
            files["tests/test.sh"] = self.test.lstrip() or checking(self.checks, self.runs)
        return files | dict(self.files)


def checking(checks: str, runs: bool = False) -> str:
    """Returns a `test.sh` that earns 1 if all commands succeed, else 0."""
    return BEGIN + (UNTRUSTED if runs else "") + dedent(checks).strip() + "\n" + END


def script(commands: str) -> str:
    """Returns a script for bash that stops at the first command that fails."""
    return "#!/bin/bash\nset -e\n" + dedent(commands).strip() + "\n"


def step(name: str, instruction: str, solve: str, checks: str) -> dict[str, str]:
    """Returns the files of one step of a task in several steps."""
    return {
        f"steps/{name}/instruction.md": dedent(instruction).strip() + "\n",
        f"steps/{name}/solution/solve.sh": script(solve),
        f"steps/{name}/tests/test.sh": checking(checks),
    }


def write(folders: Iterable[Folder], root: Path) -> list[Path]:
    """Writes the tasks below `root`; returns their paths. What is there already is replaced, file by file."""
    paths = []
    for folder in folders:
        for name, text in folder.all_files().items():
            file = root / folder.name / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            file.chmod(0o755 if name.endswith(".sh") else 0o644)
        paths.append(root / folder.name)
    return paths
