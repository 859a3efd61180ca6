"""Help, version, completion, and the commands that commands print."""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from air import paths
from air.cli.commands import COMMANDS
from air.cli.completion import script
from air.cli.episodes import shell, show
from air.cli.main import main
from air.cli.parser import parser_of
from air.cli.runs import eval as evaluation


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_has_examples_that_the_parser_reads(name: str) -> None:
    module = importlib.import_module(COMMANDS[name])
    for parser in _parsers(parser_of(name)):
        _, found, examples = parser.format_help().partition("examples:\n")
        assert found, parser.prog
        for line in examples.splitlines():
            _, given, words = line.partition(f"{paths.command()} {name}")
            assert given, line
            args = shlex.split(words.removesuffix(')"'))  # one is inside eval "$(…)"
            if hasattr(module, "spelled_out"):
                args = module.spelled_out(args)
            _, rest = parser_of(name).parse_known_args(args)
            assert not rest or getattr(module, "TAKES_REST", False), line
        for flag in parser._actions:
            assert flag.help or isinstance(flag, argparse._SubParsersAction), flag


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yields a parser and those of its subcommands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from _parsers(inner)


def _flags(
    parser: argparse.ArgumentParser, path: str
) -> Iterator[tuple[str, argparse.Action, str]]:
    """Yields each flag with a text in brackets at the end of its help: its name, itself, and this text."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield from _flags(inner, f"{path} {name}")
        elif action.option_strings and (found := re.findall(r"\(([^()]+)\)", action.help or "")):
            yield f"{path} {action.option_strings[0]}", action, found[-1]


CODE_DEFAULTS = {
    "show --last": show.DEFAULT_LAST,
    "show --sort": show.DEFAULT_SORT,
    "shell --max-turns": shell.MAX_TURNS,
    "eval --max-turns": evaluation._TURNS,
    "eval --max-tokens": evaluation._TOKENS,
    "eval --context": evaluation._CONTEXT,
}
"""Defaults that a command sets itself, because it must know whether the flag was given."""


def test_defaults_in_help_are_those_of_the_code() -> None:
    flags = [found for name in COMMANDS for found in _flags(parser_of(name), name)]
    assert set(CODE_DEFAULTS) <= {name for name, _, _ in flags}
    compared = 0
    for name, action, text in flags:
        default = CODE_DEFAULTS.get(name, action.default)
        if default is None or default is False or default == argparse.SUPPRESS or default == []:
            continue
        if text == "default":  # behind the choice that is it
            assert f"{default} (default)" in (action.help or ""), name
        else:
            words = " ".join(map(str, default)) if isinstance(default, list) else f"{default}"
            said = re.split(r"[:,] (?:or )?", text)[-1].removeprefix("./")
            assert said in (words, words.removesuffix(".0")), name
        compared += 1
    assert compared > 15


def test_folders_of_tasks_have_one_flag_in_all_commands() -> None:
    every = [one for name in COMMANDS for one in _parsers(parser_of(name))]
    flags = {word for one in every for flag in one._actions for word in flag.option_strings}
    assert {word for word in flags if "root" in word} == {"--task-root", "--mlgym-root"}
    args = parser_of("serve").parse_args(["ors", "a", "--task-root", "x", "--task-root", "y"])
    assert args.task_roots == [Path("x"), Path("y")]


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("air ")
    assert main(["help"]) == 0
    assert "quickstart" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:  # as argparse ends after --help
        main(["help", "show"])
    assert ended.value.code == 0
    assert "--sort" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["shwo"], "air: there is no command 'shwo' — did you mean `{air} show`?"),
        (["help", "nothing"], "air: there is no command 'nothing' — `{air} --help` lists them"),
        (["show", "x", "--srot"], "air show: there is no flag or place for --srot — did you mean --sort?"),
        (["tasks", "check", "--al"], "air tasks: there is no flag or place for --al — did you mean --all?"),
        (["tasks", "list", "--all"],
         "air tasks: --all does not belong here — it is a flag of `{air} tasks check`"),
    ],
)  # fmt: skip
def test_a_mistyped_command_or_flag_is_one_line(
    args: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(args) == 2
    assert capsys.readouterr().err == f"error: {line.format(air=paths.command())}\n"


@pytest.mark.parametrize("action", ["list", "check", "fetch"])
def test_flags_of_air_tasks_stand_before_or_after_the_subcommand(action: str) -> None:
    flags = ["--mlgym-root", "checkout", "--task-root", "mine"]
    for words in ([*flags, action, "x"], [action, "x", *flags]):
        args = parser_of("tasks").parse_args(words)
        assert (args.mlgym_root, args.task_root) == (Path("checkout"), [Path("mine")])


def test_printed_commands_start_this_python_s_air(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(sys.executable).parent
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert paths.command() == str(folder / "air")
    monkeypatch.chdir(folder.parent)
    assert paths.command("rl") == f"{folder.name}/rl"
    monkeypatch.setenv("PATH", str(folder))
    assert paths.command() == "air"


@pytest.mark.parametrize(
    ("words", "choice"),
    [(["air", "sh"], "shell"), (["air", "show", "--so"], "--sort"), (["rl", "--dry"], "--dry-run"),
     (["air", "tasks", "check", "--a"], "--all"), (["air", "help", "doc"], "doctor")],
)  # fmt: skip
def test_bash_completes_commands_and_flags(words: list[str], choice: str) -> None:
    quoted = " ".join(words)
    asks = f'COMP_WORDS=({quoted}) COMP_CWORD={len(words) - 1}; _air; echo "${{COMPREPLY[@]}}"'
    argv = ["bash", "-c", f"{script('bash')}\n{asks}"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert choice in done.stdout.split()


def test_a_reader_that_ends_ends_the_command_silently() -> None:
    code = "import sys; from air.cli.main import main; sys.exit(main(['help']))"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141
