"""Reads a Harbor task's folder, and checks that its `task.toml` and its other files are consistent.

Nothing is executed. As in Harbor, links that lead out of the folder are errors. A file `.harborignore` is an
error too, because air does not support such files.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from air.config import read_toml, validate
from air.errors import ConfigError, MissingError
from air.tasks.sources.harbor.schema import HarborConfig, Step

_CANARY = re.compile(r"<!--.*canary.*-->|#.*canary.*", re.IGNORECASE)
_PARTS = ("environment", "tests", "solution", "steps")
_FILES = ("task.toml", "instruction.md", "README.md", "trajectory.json")
_NEVER_PACKED = re.compile(r"(^|/)(__pycache__/.*|\.DS_Store|[^/]*(\.pyc|\.swp|\.swo|~))$")


@dataclass(frozen=True)
class HarborFolder:
    """The folder of a Harbor task on disk."""

    path: Path
    """The task's folder as an absolute path without symbolic links."""
    config: HarborConfig
    """The contents of the task's `task.toml`."""

    @property
    def name(self) -> str:
        """The task's name: the key `name` in the section `[task]` of `task.toml`, or the folder's name if
        there is no such section."""
        return self.config.task.name if self.config.task else self.path.name

    def instruction(self, step: Step | None = None) -> str:
        """Returns the instruction of the task, or of one of its steps, for the agent. Leaves out canary lines
        at the beginning of the file (comments by which people find out whether training data contains the
        task). Raises ConfigError if the file is not UTF-8 text."""
        file = self._of(step) / "instruction.md"
        try:
            lines = file.read_text(encoding="utf-8").split("\n")
        except UnicodeDecodeError as error:
            raise ConfigError(f"not UTF-8: {error}", where=str(file)) from None
        first = 0
        while first < len(lines) and _CANARY.fullmatch(lines[first].strip()):
            first += 1
        while first < len(lines) and not lines[first].strip():
            first += 1
        return "\n".join(lines[first:])

    def tests(self, step: Step | None = None) -> dict[str, Path]:
        """Returns the test files by their path relative to `/tests` in the box (sandbox): the test files of
        the task and, unless `step` is None, those of the step. A file of the step replaces the task's file at
        the same path."""
        files = dict(_files(self.path / "tests"))
        return files if step is None else files | dict(_files(self._of(step) / "tests"))

    def solution(self, step: Step | None = None) -> dict[str, Path]:
        """Returns the files of the reference solution of the task, or of one of its steps, by their path
        relative to `/solution` in the box (sandbox); an empty dict if there is no solution."""
        return dict(_files(self._of(step) / "solution"))

    def setup(self, step: Step) -> dict[str, Path]:
        """Returns the files that air copies into the working directory of the agent before `step` of the task
        begins. The keys are the paths of the copies in that directory, the values the files of the task."""
        return dict(_files(self._of(step) / "workdir"))

    @property
    def dockerfile(self) -> Path | None:
        """The path of the Dockerfile of the agent's image; None if there is none."""
        return _file(self.path / "environment" / "Dockerfile")

    @property
    def verifier_dockerfile(self) -> Path | None:
        """The path of the Dockerfile of the verifier's (the tests') own image; None if there is none."""
        return _file(self.path / "tests" / "Dockerfile")

    def verifier_image(self, step: Step | None = None) -> str | Path | None:
        """Returns where the container image comes from that already contains the task's tests: the name of an
        existing image, or the folder with the image's Dockerfile. None if there is no such image. As in
        Harbor, an image or Dockerfile of the step takes precedence over those of the task."""
        places = [(self.config.verifier, self.path / "tests")]
        if step is not None:
            places.insert(0, (step.verifier, self._of(step) / "tests"))
        for verifier, folder in places:
            if verifier.environment and verifier.environment.docker_image:
                return verifier.environment.docker_image
            if (folder / "Dockerfile").is_file():
                return folder
        return None

    @cached_property
    def digest(self) -> str:
        """The digest of all files of the task, as Harbor's registry computes it: `sha256:` and the SHA-256 of
        one line for each file, sorted by path. A line is the path, a null byte and the SHA-256 of the
        content. Files in symbolically linked folders do not count."""
        total = hashlib.sha256()
        for name, file in sorted(self._packed()):
            total.update(f"{name}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
        return f"sha256:{total.hexdigest()}"

    def _packed(self) -> Iterator[tuple[str, Path]]:
        for name in _FILES:
            if (file := self.path / name).is_file():
                yield name, file
        for part in _PARTS:
            for name, file in _files(self.path / part, into_links=False):
                if not _NEVER_PACKED.search(f"{part}/{name}"):
                    yield f"{part}/{name}", file

    def _of(self, step: Step | None) -> Path:
        return self.path if step is None else self.path / "steps" / step.name


def read(path: Path) -> HarborFolder:
    """Reads a Harbor task's folder and checks that the files it needs exist. Raises MissingError if there is
    no `task.toml`, and ConfigError, which names file and key, if the task is invalid."""
    path = Path(os.path.realpath(path.expanduser()))
    file = path / "task.toml"
    folder = HarborFolder(path, validate(HarborConfig, read_toml(file), where=str(file)))
    _check_links(path)
    if ignored := next(path.rglob(".harborignore"), None):
        raise ConfigError(
            "files of a task cannot be left out by a `.harborignore`",
            where=str(ignored),
            remedy="delete the files that it names, and the `.harborignore` itself",
        )
    for step in folder.config.steps or (None,):
        _check_files(folder, step)
    return folder


def _check_files(folder: HarborFolder, step: Step | None) -> None:
    where = folder.path if step is None else folder.path / "steps" / step.name
    if not (where / "instruction.md").is_file():
        raise MissingError(
            "there is no instruction.md",
            where=str(where),
            remedy="write what the agent shall do into it",
        )
    folder.instruction(step)
    separate = folder.config.verifier_mode(step) == "separate"
    bundled = separate and folder.verifier_image(step) is not None
    if not bundled and "test.sh" not in folder.tests(step):
        raise MissingError(
            "there is no tests/test.sh",
            where=str(where),
            remedy="write the script that grades the agent's work and writes /logs/verifier/reward.txt",
        )
    environment = folder.config.environment
    if not environment.docker_image and not (folder.path / "environment").is_dir():
        raise MissingError(
            "there is neither a folder environment/ nor environment.docker_image",
            where=str(folder.path),
            remedy="add environment/Dockerfile",
        )


def _check_links(root: Path) -> None:
    """Raises ConfigError if a link in the folder is broken, leads out of the folder, or leads to a folder
    that contains the link."""

    def visit(folder: Path, around: tuple[Path, ...]) -> None:
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            target = Path(os.path.realpath(entry.path))
            if not target.is_relative_to(root):
                raise ConfigError(
                    "is a link out of the task's folder",
                    where=entry.path,
                    remedy="put a copy there",
                )
            if not target.exists() or target in around:
                raise ConfigError(
                    "is a link to nothing, or to a folder around it",
                    where=entry.path,
                    remedy="remove it",
                )
            if entry.is_dir():
                visit(Path(entry.path), (*around, target))

    visit(root, (root,))


def _files(folder: Path, *, into_links: bool = True) -> Iterator[tuple[str, Path]]:
    """Yields all files below a folder as pairs (path relative to the folder, absolute path). `into_links`:
    whether files in symbolically linked folders are included."""
    for place, names, files in os.walk(folder, followlinks=into_links):
        names.sort()
        for name in sorted(files):
            path = Path(place) / name
            yield path.relative_to(folder).as_posix(), path


def _file(path: Path) -> Path | None:
    return path if path.is_file() else None
