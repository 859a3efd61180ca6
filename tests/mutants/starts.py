"""What a command that is spawned in a container holds to; those that are forked are in `guest.py`."""

from __future__ import annotations

from tests.mutants import DOCKER_WORKS, Mutant, in_docker

_FILE = "air/sandbox/guest/spawn.py"


def _mutant(name: str, old: str, new: str, *checks: str) -> Mutant:
    return Mutant(f"in a container, {name}", _FILE, old, new, in_docker(*checks), DOCKER_WORKS)


MUTANTS = (
    _mutant(
        "out of memory ends commands, never the guest",
        'os.pwrite(self.score, b"1000", 0)',
        "pass",
        "out-of-memory-ends-commands-first",
    ),
    _mutant(
        "a command is in a process group of its own",
        "setpgroup=0, ",
        "",
        "a-signal-to-its-own-group-ends-a-command-alone",
    ),
    _mutant(
        "a command does not inherit what the guest ignores",
        ", setsigdef=SIGNALS",
        "",
        "exit-codes-are-data",
    ),
    Mutant(
        "in a container, a command's standard streams are not the guest's",
        _FILE,
        "for number, fd in enumerate(streams)]",
        "for number, fd in enumerate(streams[:1])]",
        in_docker("output-is-never-taken-for-an-answer"),
        in_docker("the-time-to-live-ends-the-box")[0],
    ),
    _mutant(
        "a command begins in the folder that is asked for",
        "            os.chdir(cwd)\n            executing = True\n            pid",
        "            executing = True\n            pid",
        "working-directory-and-environment",
    ),
    _mutant(
        "no room for a process is told from a program that cannot run",
        "                raise  # there is no room for a process\n",
        "                pass\n",
        "with-no-process-left-files-are-still-served",
    ),
)
