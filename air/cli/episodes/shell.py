"""Implements the command `air shell TASK`: a person plays an episode by typing replies in place of a model.

With `--exec`, the replies come from a script. With `--from`, the person continues a recorded episode. With
`--attach`, the person looks into the box (sandbox) of an episode that a model plays at the moment.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from air import paths
from air.cli import flags
from air.cli.episodes import shell_attach, shell_input
from air.cli.episodes.loop_thread import Loop
from air.cli.episodes.shell_attach import Attachment
from air.cli.episodes.shell_output import Screen
from air.cli.heavy_imports import collector_paused
from air.errors import AirError, ConfigError, UsageError, boundary

if TYPE_CHECKING:
    from air.env.config import ResearchEnvConfig
    from air.manual.session import ManualEpisode
    from air.manual.world_session import ManualWorld
    from air.trajectories import Trajectory

    Session = ManualEpisode | ManualWorld

HELP = "play a task by hand and see what a model would see; --attach: look into a running box"
EXAMPLES = (
    "air shell titanic",
    "air shell --from outputs/RUN/trajectories/ID.jsonl --turn 2",
)
USAGE = """\
A line is an action: a command, `validate`, `submit`, or a tool of the action format; in a world, an
answer; in a world or a task with tools, a call of one: NAME {"argument": "value"}.
An action of several lines, or one that begins with : or #, goes between two lines of ```.
  :reply        a whole reply, as a model would write it; a line with a single dot ends it
  :prompt       the prompts that a model would see first
  :reward       the reward so far, and its terms
  :diff [N]     what the last step (or step N) changed in the workspace
  :undo         undo the last step: workspace, scores, rewards, turns; not /tmp, processes, time
  :bash [CMD]   a shell, or one command, in the box; not recorded as a step
  :save [FILE]  write a trajectory (.jsonl) that `air replay` plays again
  :expect TEXT  fail unless the last entry printed TEXT (for scripts)
  :help         this text
  :quit         leave, as Ctrl-D does. Ctrl-C stops a running action and undoes it."""
COMMANDS = ("prompt", "reward", "diff", "undo", "bash", "save", "expect", "help", "quit")
MAX_TURNS = 10
"""The maximum number of turns in an episode of a research task if `--max-turns` is not given."""
_NEW_EPISODE_FLAGS = ("format", "seed")
_EPISODE_FLAGS = (*_NEW_EPISODE_FLAGS, "runtime", "max_turns", "env", "task_root", "mlgym_root")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = f"{USAGE}\n\nExit codes: 0; 1 an :expect or a box failed; 2 bad input."
    parser.add_argument("task", nargs="?", help="a task's id; `air tasks` lists them")
    parser.add_argument(
        "--exec",
        dest="script",
        metavar="FILE",
        help="read lines from a script; - is stdin (default: the terminal)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line on stdout")
    parser.add_argument("--format", help="the action format (default: the task's own)")
    flags.add_runtime(parser, default=None, note="default: docker; with --from: as recorded")
    parser.add_argument(
        "--max-turns",
        type=int,
        help=f"turns of the episode (the world's own, or {MAX_TURNS}); 0: no limit",
    )
    parser.add_argument("--seed", type=int, help="seed of the episode (0)")
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of the environment, e.g. agent.harness.max_observation_tokens=200 (none)",
    )
    flags.add_task_root(parser)
    flags.add_mlgym_root(parser)
    parser.add_argument(
        "--from", dest="origin", type=Path, metavar="TRAJECTORY", help="continue a recorded episode"
    )
    flags.add_turn(
        parser, "with --from: continue after N turns; --step is the earlier name (default: all)"
    )
    parser.add_argument(
        "--attach",
        metavar="BOX|RUN",
        help="look into a running box, or into the next episode of a run: :log, :files, :bash",
    )


def run(args: argparse.Namespace) -> int:
    """Plays an episode, or attaches to a running box, until the script ends or the person quits. Returns the
    exit code 0; problems are raised as errors."""
    modes = [name for name in ("task", "origin", "attach") if getattr(args, name) is not None]
    if len(modes) != 1:
        raise ConfigError("name a task, or --from TRAJECTORY, or --attach BOX", where="air shell")
    if args.turn is not None and args.origin is None:
        raise ConfigError("has no effect without --from", where=flags.as_written(args, "turn"))
    _refuse_idle(args)
    screen = Screen(as_json=args.json)
    commands = COMMANDS if args.attach is None else shell_attach.COMMANDS
    entries = None if args.script is None else _script(args.script, commands)
    if entries is None and not sys.stdin.isatty():
        raise ConfigError("standard input is not a terminal", remedy="pass a script: --exec -")
    if args.attach is not None:
        box = shell_attach.find(args.attach, screen)
        return _turns(Attachment(box, screen), screen, entries, args.script)
    with Loop() as loop:
        session = _session(args)
        loop.run(session.__aenter__())
        try:
            shell = _Shell(session, loop, screen, stop=entries is None)
            shell.prompt("")
            return _turns(shell, screen, entries, args.script)
        finally:
            loop.run(session.__aexit__(None, None, None))


def _refuse_idle(args: argparse.Namespace) -> None:
    """Raises ConfigError if a flag has no effect with `--attach` or `--from`."""
    if args.task is not None:
        return
    mode, idle = (
        ("--attach", _EPISODE_FLAGS) if args.attach is not None else ("--from", _NEW_EPISODE_FLAGS)
    )
    for name in idle:
        if getattr(args, name) not in (None, []):
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(f"has no effect with {mode}", where=flag)


def _script(name: str, commands: Sequence[str]) -> list[shell_input.Entry]:
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        return shell_input.script(data.decode(), name, commands)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot be read: {error}", where=name) from None


def _session(args: argparse.Namespace) -> Session:
    with collector_paused():
        from air.config import validate
        from air.env.config import ResearchEnvConfig
        from air.manual.session import ManualEpisode, recorded_config
        from air.manual.world_session import ManualWorld
        from air.sandbox.contract.box import NOT_ISOLATED
        from air.worlds.sources import is_world

    origin = (
        None
        if args.origin is None
        else _origin(args.origin, args.turn, flags.as_written(args, "turn"))
    )
    if origin is None:
        data: dict[str, Any] = {
            "taskset": {"id": "air", "tasks": [args.task]},
            "agent": {
                "harness": {"id": "air", "format": args.format},
                "runtime": {"type": args.runtime or "docker"},
                "max_turns": None if is_world(args.task) else MAX_TURNS,
            },
        }
    else:
        data = recorded_config(origin[0], args.runtime)
        again = recorded_config(origin[0], args.runtime)  # validation changes its input
        recorded = validate(ResearchEnvConfig, again, where=str(args.origin))
    if args.max_turns is not None:
        data["agent"]["max_turns"] = args.max_turns or None
    if args.task_root:
        roots = data["taskset"].get("task_roots", [])
        data["taskset"]["task_roots"] = [*args.task_root, *roots]
    if args.mlgym_root:
        data["taskset"]["mlgym_root"] = args.mlgym_root
    for change in args.env:
        _set(data, change)
    config = validate(ResearchEnvConfig, data, where="--env" if args.env else "air shell")
    if origin is not None:
        _check_as_recorded(config, recorded)
    if is_world(config.taskset.tasks[0]):
        if origin is None:
            return ManualWorld(config, seed=args.seed or 0)
        return ManualWorld.of(config, *origin)
    if config.provider == "process":
        print(NOT_ISOLATED, file=sys.stderr)
    return ManualEpisode(config, origin=origin, seed=args.seed or 0)


def _origin(path: Path, step: int | None, flag: str) -> tuple[Trajectory, int]:
    """Reads the recorded episode in the file `path`, which is the value of the flag `--from`. Returns its
    trajectory (the record), and the number of turns to repeat before the person continues: `step`, or all
    turns if `step` is None. Raises ConfigError if the episode has fewer turns; the message names `flag`, the
    flag with which the user gave `step`."""
    from air.trajectories import load

    trajectory = load(path)
    steps = len(trajectory.steps) if step is None else step
    if not 0 <= steps <= len(trajectory.steps):
        raise ConfigError(
            f"the episode has {len(trajectory.steps)} steps",
            where=f"{flag} {steps}",
            remedy=f"use 0 to {len(trajectory.steps)}",
        )
    return trajectory, steps


def _check_as_recorded(config: ResearchEnvConfig, recorded: ResearchEnvConfig) -> None:
    """Raises ConfigError if `config`, the settings for continuing a recorded episode, differs from
    `recorded`, the settings of the recording, in the reward or in the harness (which drives the
    conversation). All turns of one trajectory (recorded episode) must have the same settings."""
    from air.env.config import AirHarnessConfig
    from air.rewards.terms import RewardSettings

    harness, then = config.agent.harness, recorded.agent.harness
    pay = RewardSettings.model_fields
    names = [name for name in pay if getattr(config, name) != getattr(recorded, name)]
    names += [
        f"agent.harness.{name}"
        for name in ("id", "format", *sorted(AirHarnessConfig.own_fields()))
        if getattr(harness, name, None) != getattr(then, name, None)
    ]
    if names:
        raise ConfigError(
            f"{names[0]} cannot be changed in a recorded episode", where="--env with --from"
        )


def _set(data: dict[str, Any], change: str) -> None:
    """Sets one value in nested dictionaries: the string `a.b=value` as `change` sets `data["a"]["b"]` to
    `value`. Raises ConfigError if `change` does not have this form or if `data["a"]` is not a dictionary."""
    name, value = flags.key_value(change, "--env")
    *outer, last = name.split(".")
    for part in outer:
        data = data.setdefault(part, {})
        if not isinstance(data, dict):
            raise ConfigError(f"{part} is not a table", where=f"--env {name}")
    data[last] = value


class _Shell:
    """Executes the inputs of `air shell`, replies and commands, in an episode. The method `act` plays a
    reply. For each command there is a method of the same name, which gets the text after the name as its
    argument: for example, `undo` executes `:undo`.

    If the argument `stop` is true, Ctrl-C stops only the running action; otherwise Ctrl-C ends `air shell`.
    """

    def __init__(self, session: Session, loop: Loop, screen: Screen, *, stop: bool) -> None:
        self._session, self._loop, self._screen = session, loop, screen
        self._on_interrupt = session.interrupt if stop else None
        self._in_undo = (lambda: None) if stop else None  # a stopped undo would leave no box

    @property
    def input_prompt(self) -> str:
        """The text before a person's input: the task's id and, if turns are limited, the number of remaining
        turns."""
        left = self._session.turns_left
        turns = "" if left is None else f" {left}"
        return f"{self._session.episode.task_id}{turns}> "

    def act(self, reply: str, seconds: float) -> None:
        """Plays one turn with a person's reply and prints the result. `seconds` is the time that the person
        needed to type the reply; the trajectory records it."""
        session = self._session
        lines = self._loop.run(session.act(reply, seconds), self._on_interrupt)
        for line in lines:
            self._screen.line(line, session.episode.rewards)

    def prompt(self, _: str) -> None:
        start = self._session.lines[0]
        parts = start["system"], *(start.get("opening") or ()), start["prompt"]
        self._screen.tell("prompt", "\n\n".join(filter(None, parts)), line=start)
        steps = [line for line in self._session.lines if line["type"] == "step"]
        if steps:
            self._screen.note("step", f"after step {len(steps)}; its observation:", line=steps[-1])
            self._screen.tell("shown", steps[-1]["shown"])

    def reward(self, _: str) -> None:
        terms = self._session.episode.rewards
        self._screen.reward(terms)

    def reply_of(self, text: str) -> str | None:
        """Converts an action that a person typed to a reply in the episode's action format, the syntax in
        which a model would write it. Returns None if the caller must use `Entry.reply` instead, which is the
        action between two fences (```)."""
        return self._session.written(text)

    def diff(self, rest: str) -> None:
        turn = shell_input.number(rest, ":diff") if rest else None
        diff = self._session.record.diff(turn)
        self._screen.diff(diff)

    def undo(self, _: str) -> None:
        self._screen.note("undo", self._loop.run(self._session.undo(), self._in_undo))

    def bash(self, rest: str) -> None:
        from air.manual.session import ManualEpisode

        session = self._session
        box = session.episode.world.box if isinstance(session, ManualEpisode) else session.box
        if rest:
            result = self._loop.run(session.bash(rest), self._on_interrupt)
            text = result.text + ("" if result.code == 0 else f"[exit {result.code}]\n")
            self._screen.tell("bash", text.rstrip("\n"), code=result.code)
            return
        shell_attach.needs_terminal()
        session.outside = True
        if box.isolation == "container":
            shell_attach.enter(box.id)
            return
        self._screen.note(
            "bash", "type commands for the process box, one a line; Ctrl-D returns to the episode"
        )
        while True:
            try:
                line = input("box$ ")
            except EOFError:
                print()
                return
            if line.strip() == "exit":
                return
            if line.strip():
                with _keep_prompt(self._screen):
                    self.bash(line)

    def save(self, rest: str) -> None:
        session = self._session
        folder = Path("outputs", "shell", "trajectories")
        with boundary(ConfigError, ":save", RuntimeError):  # for `~name` if there is no such user
            path = Path(rest).expanduser() if rest else folder / f"{session.episode.id}.jsonl"
        session.save(path)
        message = f"saved {path}: replay it with `{paths.command()} replay {path}`"
        if session.outside:
            message += "; after :bash, :undo or another --max-turns the replay may differ"
        self._screen.note("save", message, path=str(path))

    def help(self, _: str) -> None:
        self._screen.tell("help", USAGE)


def _turns(
    shell: _Shell | Attachment,
    screen: Screen,
    entries: list[shell_input.Entry] | None,
    where: str | None,
) -> int:
    """Executes the inputs (replies and commands) in `entries`, the contents of a script, on `shell`, and
    prints the results on `screen`. Errors name the script, `where`, and the line. If `entries` is None,
    executes the inputs that a person types at the terminal. Returns the exit code 0."""
    if entries is None:
        return _prompt_loop(shell, screen)
    for one in entries:
        if one.command == "quit":
            break
        try:
            _do(shell, screen, one, 0.0)
        except UsageError as error:
            raise UsageError(str(error), where=f"{where}:{one.line}") from None
        except AirError as error:
            raise AirError(f"{where}:{one.line}: {error}") from error
    return 0


def _do(shell: _Shell | Attachment, screen: Screen, one: shell_input.Entry, seconds: float) -> None:
    if one.command == "expect":
        screen.expect(one.rest)
        return
    screen.forget()
    if one.command is None:
        reply = None
        if one.action is not None and isinstance(shell, _Shell):
            reply = shell.reply_of(one.action)
        shell.act(one.reply if reply is None else reply, seconds)
    else:
        getattr(shell, one.command)(one.rest)


def _prompt_loop(shell: _Shell | Attachment, screen: Screen) -> int:
    """Reads inputs (replies and commands) from the terminal, executes them on `shell`, and prints the results
    on `screen`, until the person quits. Returns the exit code 0."""
    commands = shell_attach.COMMANDS if isinstance(shell, Attachment) else COMMANDS
    with shell_input.history():
        screen.note("help", ":help lists the commands")
        while True:
            start = time.monotonic()
            try:
                one = shell_input.entry(
                    lambda first: input(shell.input_prompt if first else "... ")
                )
            except EOFError:
                print()
                return 0
            except UnicodeDecodeError as error:
                screen.note("error", f"the line is not valid UTF-8: {error}")
                continue
            except KeyboardInterrupt:
                print()
                continue
            if one is None:
                continue
            if one.command == "quit":
                return 0
            with _keep_prompt(screen):
                if one.command is not None and one.command not in commands:
                    raise UsageError(
                        f"there is no command :{one.command}", remedy=":help lists the commands"
                    )
                _do(shell, screen, one, time.monotonic() - start)


@contextlib.contextmanager
def _keep_prompt(screen: Screen) -> Iterator[None]:
    """Context manager: prints an error of the `with` block instead of raising it, so that the person can type
    the next input. Ctrl-C ends only the block."""
    try:
        yield
    except AirError as error:
        screen.note("error", f"{error}")
    except KeyboardInterrupt:
        print()
