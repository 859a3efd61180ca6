"""Defences that hold an agent off, each with its mutation: without the defence, a named test must turn red.

About eighty defences of isolation, of grading and of rewards are here: those where a test that asserts too
little would hide a hole. Ordinary behaviour has ordinary tests.

`make mutants` plays them (see `__main__`); `tests/unit/test_mutants.py` holds that each still fits the
source. A mutant is applied only in a copy of the tree whose tests get temporary folders of their own.
None of them may, when its tests run, make air remove or end what is not its own: those that decide
whose something is name pure tests only.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """One defence, and how to take it out."""

    name: str
    """What holds, in words."""
    file: str
    """The source file, relative to the repository."""
    old: str
    """Its text: occurs exactly once in the file."""
    new: str
    """What stands there without the defence."""
    tests: tuple[str, ...]
    """Node ids of tests, at least one of which turns red."""
    still: str = ""
    """A test that stays green, so that the mutation takes out the defence and not the whole thing."""

    root: bool = False
    """Whether its tests are about process boxes as root has them, in namespaces."""

    @property
    def docker(self) -> bool:
        """Whether it needs an engine."""
        return any(test.startswith("tests/docker/") for test in (*self.tests, self.still))

    def applied(self, source: str) -> str:
        """The file's text without the defence; ValueError where it no longer fits."""
        if (count := source.count(self.old)) != 1:
            raise ValueError(f"its text occurs {count} times in {self.file}, not once")
        return source.replace(self.old, self.new)


_IN_DOCKER = "tests/docker/boxes/test_docker_box.py::test_conformance"
_AS_PROCESS = "tests/unit/sandbox/process/test_process_box.py::test_conformance"


def in_docker(*checks: str) -> tuple[str, ...]:
    """The node ids of conformance checks, played in a container."""
    return tuple(f"{_IN_DOCKER}[{check}]" for check in checks)


def as_process(*checks: str) -> tuple[str, ...]:
    """The node ids of conformance checks, played in a process box without namespaces."""
    return tuple(f"{_AS_PROCESS}[plain-{check}]" for check in checks)


def as_root(*checks: str) -> tuple[str, ...]:
    """The node ids of conformance checks, played in a process box as root has it."""
    return tuple(f"{_AS_PROCESS}[root-{check}]" for check in checks)


DOCKER_WORKS = f"{_IN_DOCKER}[standard-input-is-what-was-given]"
PROCESS_WORKS = f"{_AS_PROCESS}[plain-standard-input-is-what-was-given]"
ROOT_WORKS = f"{_AS_PROCESS}[root-standard-input-is-what-was-given]"


def table() -> tuple[Mutant, ...]:
    """All mutants, in the order of reading."""
    from tests.mutants import battery, boxes, grading, guest, network

    parts = (boxes, guest, network, grading, battery)
    return tuple(mutant for part in parts for mutant in part.MUTANTS)
