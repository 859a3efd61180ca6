"""Implements the command `air shell --attach BOX|RUN`: a person looks into a running box (the sandbox of an
episode) while a model continues to play there.

The person can read the log of the agent's commands and run commands beside the agent. In a container, these
commands run within the container's limits. A process box has no container: the commands run on this machine,
in the workspace (the agent's folder). The agent sees the changes that the commands make.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from air.cli.boxes.box import event_line
from air.cli.episodes import shell_input
from air.cli.episodes.shell_output import Screen
from air.errors import ConfigError, MissingError, UsageError

if TYPE_CHECKING:
    from air.sandbox.ops.listing import LiveBox

COMMANDS = ("log", "files", "bash", "expect", "help", "quit")
USAGE = """\
  :log [N]      the last N events of the box (20): commands and their results
  :files [DIR]  the files in a folder of the workspace
  :bash [CMD]   a shell, or one command, beside the agent
  :expect TEXT  fail unless the last entry printed TEXT (for scripts)
  :help         this text
  :quit         leave, as Ctrl-D does. The episode goes on."""
_EVENTS = 20
_POLL_SECONDS = 0.3
_SHELL = ["sh", "-c", "command -v bash >/dev/null && exec bash --norc; exec sh"]
_NO_TRACES = [
    "env",
    "HISTFILE=/dev/null",
    "PYTHON_HISTORY=/dev/null",
    "LESSHISTFILE=-",
    "ENV=",
    "INPUTRC=/dev/null",
]
"""The first words of the command that starts a person's shell in a box. They keep the shell from storing a
history and from running start-up files. Such files would be in the agent's workspace, where the agent could
read or change them."""


def find(name: str, screen: Screen) -> LiveBox:
    """Returns the box to look into, for the value `name` of the flag `--attach`.

    `name` is the name of a box or the beginning of one, the name of a run, or the folder of a run. For a run,
    waits until the run begins its next episode, and returns the box of that episode; a message on `screen`
    says that it waits. Raises MissingError if there is neither such a box nor a running run with this name,
    and UsageError if several boxes have this name.
    """
    from air.sandbox.ops import listing

    path = Path(name)
    if name.startswith("air-") and not path.is_dir():
        return listing.find(name)
    folder = path if path.is_dir() else Path("outputs") / name
    where = str(folder.resolve()) if folder.is_dir() else ""
    run = folder.resolve().name if where else name
    old = {box.use.get("episode") for box in _boxes() if box.of_run(run, where)}
    if not old and not (where and _goes_on(folder)):
        if where:
            raise MissingError("this run does not go on", where=name, remedy="see `air box ls`")
        return listing.find(name)
    screen.note("attach", f"waiting for the next episode of the run {run}; Ctrl-C stops")
    while True:
        own = [box for box in _boxes() if box.of_run(run, where)]
        new = [box for box in own if box.use.get("episode") not in old]
        if new:
            return new[0]
        if not own and not (where and _goes_on(folder)):
            raise MissingError(f"the run {run} ended, and began no further episode")
        time.sleep(_POLL_SECONDS)


def _boxes() -> list[LiveBox]:
    """Returns all boxes on this machine: containers and process boxes (sandboxes without a container).
    Without a container engine, returns only the process boxes."""
    from air.sandbox.ops import listing

    try:
        return listing.folders() + listing.containers()
    except MissingError:
        return listing.folders()


def _goes_on(folder: Path) -> bool:
    from air.train.loop import run_folder

    return run_folder.in_use(folder)


class Attachment:
    """Executes what a person types in `air shell --attach`, in the box `box` (the sandbox of an episode that
    a model plays). Each command has a method of the same name, which gets the rest of the line: `:log 5`
    calls `log("5")`. `act` raises UsageError, because only the model plays the episode."""

    input_prompt = "attach> "
    """The prompt before a person's input."""

    def __init__(self, box: LiveBox, screen: Screen) -> None:
        self._box, self._screen = box, screen
        where = "a container" if box.provider == "docker" else f"a process box in {box.where}"
        run, task = box.use.get("run", box.run), box.use.get("task")
        episode = f", task {task}, episode {box.use.get('episode')}" if task else ""
        message = f"{box.name}: {where}, run {run}{episode}, pid {box.pid}"
        screen.note("attach", message, box=box.name)
        self.log("")

    def act(self, reply: str, seconds: float) -> None:
        raise UsageError(
            "an attached box takes no actions", remedy="run your own command with :bash CMD"
        )

    def log(self, rest: str) -> None:
        from air.sandbox.ops import command_log

        count = shell_input.number(rest, ":log") if rest else _EVENTS
        file = command_log.folder() / f"{self._box.name}.jsonl"
        try:
            events, _ = command_log.read(file)
        except OSError as error:
            raise UsageError(
                f"the command log of {self._box.name} cannot be read: {error}"
            ) from None
        last = events[max(0, len(events) - count) :]
        text = "\n".join(event_line(event) for event in last)
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
        self._screen.note(
            "bash", "a process box: this is a shell on this machine, in the workspace"
        )
        subprocess.run(["bash", "-i"], cwd=self._box.where, check=False)

    def help(self, _: str) -> None:
        self._screen.tell("help", USAGE)

    def _run(self, argv: list[str], kind: str) -> None:
        from air.sandbox.ops import container_exec

        if self._box.provider == "docker":
            output = bytearray()
            code = container_exec.run(
                self._box.where, argv, show=lambda _, data: output.extend(data)
            )
        else:
            folder = Path(self._box.where)
            if not folder.is_dir():
                raise UsageError(f"box {self._box.name} is gone")
            process = subprocess.run(
                argv, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
            )
            code, output = process.returncode, bytearray(process.stdout)
        text = output.decode("utf-8", "replace").rstrip("\n")
        text += "" if code == 0 else f"\n[exit {code}]"
        self._screen.tell(kind, text, code=code)


def enter(container: str) -> None:
    """Runs an interactive shell in the container with the name or id `container`, on this terminal, until the
    person leaves the shell."""
    from air.sandbox.ops import container_exec

    container_exec.run(container, [*_NO_TRACES, *_SHELL], interactive=True)


def needs_terminal() -> None:
    """Raises ConfigError if standard input is not a terminal, which an interactive shell needs."""
    if not sys.stdin.isatty():
        raise ConfigError(
            "an interactive shell needs a terminal",
            where=":bash",
            remedy="give a command: :bash CMD",
        )
