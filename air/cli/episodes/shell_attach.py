"""`air shell --attach BOX`: a look into a box whose episode is running, which is not disturbed.

Nothing goes through the box's guest: its record is read from its file, a container is entered as
`air box exec` does it, and a process box is looked at as the folder that it is on this machine. A visitor
shares the box's limits, and what a visitor changes there is changed for the agent too.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from air.cli.boxes.box import told
from air.cli.episodes import shell_input
from air.cli.episodes.shell_output import Screen
from air.errors import ConfigError, UsageError

COMMANDS = ("log", "files", "bash", "expect", "help", "quit")
USAGE = """\
  :log [N]      the last N events of the box (20): its commands and what came of them
  :files [DIR]  the files of a folder of the workspace
  :bash [CMD]   as a visitor beside the agent: a shell, or one command
  :expect TEXT  fail unless the last entry printed TEXT (for scripts)
  :help         this
  :quit         leave; so does Ctrl-D. The episode goes on."""
_EVENTS = 20
_SHELL = ["sh", "-c", "command -v bash >/dev/null && exec bash --norc; exec sh"]
_NO_TRACES = [
    "env",
    "HISTFILE=/dev/null",
    "PYTHON_HISTORY=/dev/null",
    "LESSHISTFILE=-",
    "ENV=",
    "INPUTRC=/dev/null",
]
"""The home folder is the agent's workspace: a visitor's history must not appear there, nor what the agent
put there be run."""


class Visit:
    """What each entry does.

    Raises:
        MissingError: there is no such box.
        UsageError: there are several.
    """

    ready = "visit> "

    def __init__(self, name: str, screen: Screen) -> None:
        from air.sandbox.ops import listing

        self._box, self._screen = listing.find(name), screen
        box = self._box
        where = "a container" if box.provider == "docker" else f"a process box in {box.where}"
        screen.note("attach", f"{box.name}: {where}, run {box.run}, pid {box.pid}", box=box.name)
        self.log("")

    def act(self, reply: str, seconds: float) -> None:
        raise UsageError(
            "a box that is visited takes no actions", remedy=":bash runs a command of your own"
        )

    def log(self, rest: str) -> None:
        from air.sandbox.ops import command_log

        count = shell_input.number(rest, ":log") if rest else _EVENTS
        file = command_log.folder() / f"{self._box.name}.jsonl"
        try:
            found, _ = command_log.read(file)
        except OSError as error:
            raise UsageError(f"no record of it can be read: {error}") from None
        last = found[max(0, len(found) - count) :]
        text = "\n".join(told(event) for event in last)
        self._screen.tell("log", text, events=last)

    def files(self, rest: str) -> None:
        self._run(["ls", "-la", "--", rest or "."], "files")

    def bash(self, rest: str) -> None:
        if rest:
            self._run(["sh", "-c", rest], "bash")
            return
        needs_terminal()
        if self._box.provider == "docker":
            enter(self._box.where)
            return
        self._screen.note("bash", "a shell of this machine in the workspace: there is no inside")
        subprocess.run(["bash", "-i"], cwd=self._box.where, check=False)

    def help(self, _: str) -> None:
        self._screen.tell("help", USAGE)

    def _run(self, argv: list[str], kind: str) -> None:
        from air.sandbox.ops import attach

        if self._box.provider == "docker":
            output = bytearray()
            code = attach.run(self._box.where, argv, show=lambda _, data: output.extend(data))
        else:
            folder = Path(self._box.where)
            if not folder.is_dir():
                raise UsageError(f"box {self._box.name} is gone")
            done = subprocess.run(
                argv, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
            )
            code, output = done.returncode, bytearray(done.stdout)
        text = output.decode("utf-8", "replace").rstrip("\n")
        text += "" if code == 0 else f"\n[exit {code}]"
        self._screen.tell(kind, text, code=code)


def enter(container: str) -> None:
    """A shell in a container, at this terminal."""
    from air.sandbox.ops import attach

    attach.run(container, [*_NO_TRACES, *_SHELL], interactive=True)


def needs_terminal() -> None:
    """
    Raises:
        ConfigError: there is no terminal to talk at.
    """
    if not sys.stdin.isatty():
        raise ConfigError("needs a terminal without a command", where=":bash", remedy=":bash CMD")
