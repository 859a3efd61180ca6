"""The page of commands and flags, read from argparse."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator
from dataclasses import dataclass

from .markdown import Row, sentence, table


@dataclass
class Command:
    """A command or subcommand, as argparse knows it."""

    name: str
    parser: argparse.ArgumentParser
    help: str
    examples: tuple[str, ...] = ()
    rest: bool = False
    """Whether keys of the run file may follow as flags."""


def commands() -> Iterator[Command]:
    """Every command of `air`, and its subcommands."""
    from air.cli.commands import COMMANDS

    for name, module_name in COMMANDS.items():
        module = importlib.import_module(module_name)
        parser = argparse.ArgumentParser(prog=f"air {name}", description=module.HELP)
        module.add_arguments(parser)
        yield Command(
            f"air {name}",
            parser,
            module.HELP,
            module.EXAMPLES,
            bool(getattr(module, "TAKES_REST", False)),
        )
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                helps = {one.dest: one.help or "" for one in action._choices_actions}
                for sub, inner in action.choices.items():
                    yield Command(f"air {name} {sub}", inner, helps.get(sub, ""))


def flags(command: Command) -> list[Row]:
    """A command's arguments and flags."""
    rows = []
    for action in command.parser._actions:
        if isinstance(action, argparse._HelpAction | argparse._SubParsersAction):
            continue
        names = ", ".join(f"`{name}`" for name in action.option_strings)
        value = action.metavar or (action.dest.upper() if action.nargs != 0 else "")
        value = " ".join(value) if isinstance(value, tuple) else value
        if action.option_strings:
            label = f"{names} `{value}`" if value and action.nargs != 0 else names
        else:
            label = f"`{action.metavar or action.dest}`"
        kind = ""
        if action.choices:
            kind = " or ".join(f"`{choice}`" for choice in action.choices)
        default = action.default
        default_text = "" if default in (None, False, argparse.SUPPRESS, []) else f"`{default}`"
        if isinstance(default, list | tuple) and default:
            default_text = f"`{' '.join(map(str, default))}`"
        if "core" in (action.help or ""):
            default_text = "the number of cores"
        rows.append(Row(label, kind, default_text, (action.help or "").replace("%%", "%")))
    return rows


def commands_page() -> str:
    """The page of all commands."""
    lines = [
        "# Commands",
        "",
        "Every command with its flags. Read from the code of this version. `rl` is short for `air rl` and "
        "`sft` for `air sft`. `--debug` shows the traceback of an error, with every command. "
        "`air --version` prints the version, and `air help COMMAND` describes a command.",
        "",
        "Exit codes: 0 done; 1 failed or mismatch; 2 bad input; 130 interrupted.",
        "",
    ]
    for command in commands():
        level = "##" if command.name.count(" ") == 1 else "###"
        lines += [f"{level} `{command.name}`", "", f"{sentence(command.help)}", ""]
        description = command.parser.description or ""
        if description and description != command.help:
            lines += [sentence(description), ""]
        if command.rest:
            lines += [
                "Further flags are keys of the run file: see [configuration keys](configuration.md).",
                "",
            ]
        if rows := flags(command):
            lines += table(("argument", "one of", "default", "meaning"), rows, code=False)
        if command.parser.epilog:
            lines += ["```text", command.parser.epilog, "```", ""]
        if command.examples:
            lines += ["Examples:", "", "```text", *command.examples, "```", ""]
    return "\n".join(lines) + "\n"
