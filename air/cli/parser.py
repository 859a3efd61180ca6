"""Makes the argument parser of each command. The parser reports wrong arguments in one line, in the form of
all of air's error messages."""

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
        similar: list[str] = []
        if message.startswith("unrecognized arguments: ") and unknown:
            message = f"there is no flag or place for {' '.join(unknown)}"
            similar = difflib.get_close_matches(unknown[0].partition("=")[0], _flags(self), n=1)
        remedy = f"did you mean {similar[0]}?" if similar else f"see `{self.prog} --help`"
        raise UsageError(message, where=self.prog, remedy=remedy)


def _flags(parser: argparse.ArgumentParser) -> list[str]:
    """Returns all flags of a parser, including the flags of its subcommands."""
    flags = [flag for action in parser._actions for flag in action.option_strings]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            flags += [flag for inner in action.choices.values() for flag in _flags(inner)]
    return flags


def parser_of(name: str) -> Parser:
    """Returns the parser of the command `air NAME`. Its help ends with examples of the command, and the help
    of a subcommand with those of the subcommand."""
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
