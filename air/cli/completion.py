"""Implements the command `air completion bash|zsh`: prints a shell script with which the shell completes the
commands and flags of air."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

HELP = "print a script that lets the shell complete commands and flags"
EXAMPLES = ('eval "$(air completion bash)"', 'eval "$(air completion zsh)"')
_BASH = """\
_air() {
    local words="${COMP_WORDS[*]:1:COMP_CWORD-1}" current="${COMP_WORDS[COMP_CWORD]}" choices
    [ "${COMP_WORDS[0]##*/}" = air ] || words="${COMP_WORDS[0]##*/} $words"
    case "$words " in
%s
    esac
    COMPREPLY=($(compgen -W "$choices" -- "$current"))
}
complete -o default -F _air air rl sft"""
_ZSH = "autoload -Uz bashcompinit compinit && compinit && bashcompinit\n"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh"), help="the shell that reads the script")


def run(args: argparse.Namespace) -> int:
    print(script(args.shell))
    return 0


def script(shell: str) -> str:
    """Returns the completion script for `shell`, which is `bash` or `zsh`. The script for zsh is the one for
    bash after a line that turns on `bashcompinit`, zsh's support for such scripts."""
    cases = "\n".join(f'        "{words}"*) choices="{" ".join(c)}" ;;' for words, c in _choices())
    return (_ZSH if shell == "zsh" else "") + _BASH % cases


def _choices() -> Iterator[tuple[str, list[str]]]:
    """Yields pairs: the first words of a command line (without `air`), and the words that may follow them,
    such as flags. The shell script uses the first pair that fits, so `box ls` comes before `box`."""
    from air.cli.commands import COMMANDS
    from air.cli.parser import parser_of

    for name in COMMANDS:
        parser = parser_of(name)
        inner: list[str] = []
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for sub, other in action.choices.items():
                    inner.append(sub)
                    yield f"{name} {sub} ", _flags(other)
        yield f"{name} ", [*inner, *_flags(parser)]
    yield "help ", list(COMMANDS)
    yield "", [*COMMANDS, "help", "--version", "--help"]


def _flags(parser: argparse.ArgumentParser) -> list[str]:
    flags = [f for action in parser._actions for f in action.option_strings if f.startswith("--")]
    choices = [str(c) for a in parser._actions if not a.option_strings for c in a.choices or ()]
    return [*flags, *choices]
