"""Makes the argument parser of each command. It reports wrong arguments in one line with a remedy, like all
error messages of air."""

from __future__ import annotations

import argparse
import difflib
import importlib
import re
from collections.abc import Iterable
from typing import Any, NoReturn

from air import paths
from air.cli.commands import COMMANDS
from air.errors import UsageError


class Parser(argparse.ArgumentParser):
    """An argument parser that raises UsageError, with a remedy, for wrong arguments. (argparse's own parser
    prints the usage and exits the process.)"""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        unknown = message.removeprefix("unrecognized arguments: ").split()
        remedy = f"see `{self.prog} --help`"
        if message.startswith("unrecognized arguments: ") and unknown:
            message = f"there is no flag or place for {' '.join(unknown)}"
            flag = unknown[0].partition("=")[0]
            owners = _flags(self)
            if flag in owners:
                message = f"{flag} does not belong here"
                remedy = f"it is a flag of `{owners[flag]}`"
            elif similar := difflib.get_close_matches(flag, owners, n=1):
                remedy = f"did you mean {similar[0]}?"
        raise UsageError(message, where=self.prog, remedy=remedy)


def _flags(parser: argparse.ArgumentParser) -> dict[str, str]:
    """Returns a dict that maps each flag of a parser and of its subcommands to the name of the command that
    takes it, such as `air tasks check`. A flag of a command and its subcommand is mapped to the command."""
    flags = {flag: parser.prog for action in parser._actions for flag in action.option_strings}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                flags = _flags(inner) | flags
    return flags


def parser_of(name: str) -> Parser:
    """Returns the parser of the command `air NAME`, where `name` is NAME. The help text ends with examples of
    the command; the help text of a subcommand ends with examples of the subcommand."""
    module = importlib.import_module(COMMANDS[name])
    parser = Parser(prog=f"air {name}", description=module.HELP)
    module.add_arguments(parser)
    _add_examples(parser, module.EXAMPLES)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help for choice in action._choices_actions}
            for word, inner in action.choices.items():
                inner.description = inner.description or helps.get(word)
                start = re.compile(rf"(\S+=\S+ )?air {name} {re.escape(word)}( |$)")
                _add_examples(inner, filter(start.match, module.EXAMPLES))
    return parser


def _add_examples(parser: argparse.ArgumentParser, examples: Iterable[str]) -> None:
    """Adds examples of a command to the end of its parser's help."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    run = paths.command()
    lines = [f"  {line.replace('air ', f'{run} ', 1)}" for line in examples]
    if lines:
        text = "\n".join(["examples:", *lines])
        parser.epilog = f"{parser.epilog}\n\n{text}" if parser.epilog else text


def check_command(name: str) -> None:
    """Raises UsageError if there is no command `air NAME`."""
    if name not in COMMANDS:
        similar = difflib.get_close_matches(name, COMMANDS, n=1)
        remedy = f"did you mean `air {similar[0]}`?" if similar else "`air --help` lists them"
        raise UsageError(f"there is no command {name!r}", where="air", remedy=remedy)
