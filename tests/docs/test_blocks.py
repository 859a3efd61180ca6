"""Every code block of README and docs that can run here is run; the others say why they are not.

`sh` and `python` blocks of a page run in turn, in a folder of the page's own that holds `outputs/my-run` and
`my-model`. Blocks marked `parsed only` have their flags parsed and their run files checked. `toml` blocks are
validated as parts of a run file or of a `task.toml`.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from air.cli.commands import COMMANDS
from air.cli.main import main
from air.config import read_toml
from air.paths import shipped
from air.tasks.spec import TaskSpec
from air.train.config import overrides
from air.train.config.run_config import RunConfig
from air.train.prime_rl import schema
from air.worlds.rows.settings import RowsSettings
from tests.docs.blocks import LANGUAGES, PAGES, ROOT, Block, all_blocks, blocks, commands

RUN_PAGES = [
    page
    for page in PAGES
    if any(b.how == "run" and b.language in ("sh", "python") for b in blocks(page))
]
PATH = re.compile(
    r"`((?:air|bench|configs|docs|examples|images|scripts|tasks|tests|\.ci)/[\w./*-]*|\w+\.(?:md|toml))`"
)
NAME = re.compile(r"`(air(?:\.\w+)+)")
METHOD = re.compile(r"`([A-Z][a-z]\w*)\.([a-z]\w*)[`(]")


def test_marks_have_reasons_and_most_blocks_run() -> None:
    code = [block for block in all_blocks() if block.language in LANGUAGES]
    by_how = {how: [b for b in code if b.how == how] for how in ("run", "parsed only", "not run")}
    print({how: len(found) for how, found in by_how.items()})
    assert 4 * len(by_how["not run"]) <= len(code), "more than a quarter of the blocks are not run"
    assert len(by_how["run"]) > len(code) / 2
    for block in all_blocks():
        assert block.language in (*LANGUAGES, "text"), f"{block}: no language, or an unknown one"
        assert block.how == "run" or len(block.reason) > 10, f"{block}: the mark has no reason"


@pytest.mark.docker
@pytest.mark.parametrize("page", RUN_PAGES, ids=lambda page: page.stem)
async def test_blocks_run(page: Path, place: Path, programs: Path) -> None:
    """Each block must end with exit code 0, or without an exception."""
    for block in blocks(page):
        if block.how == "run" and block.language == "sh":
            run_shell(block, place, programs)
        elif block.how == "run" and block.language == "python":
            code = compile(block.text, str(block), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            await (eval(code, {"__name__": "block"}) or nothing())


async def nothing() -> None:
    """For blocks without `await`."""


def run_shell(block: Block, place: Path, programs: Path) -> None:
    path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.text],
        cwd=place,
        env={**os.environ, "PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{block}: exit {done.returncode}\n{done.stdout.decode()[-3000:]}"


PARSED = [b for b in all_blocks() if b.how == "parsed only" and b.language == "sh"]


@pytest.mark.parametrize("block", PARSED, ids=str)
def test_commands_parse(block: Block, capsys: pytest.CaptureFixture[str]) -> None:
    """The flags of every command are known; those that read run files accept their files and keys."""
    for argv in commands(block.text):
        assert argv[0] in ("air", "rl", "sft"), f"{block}: {argv[0]} cannot be parsed here"
        name, args = (argv[1], argv[2:]) if argv[0] == "air" else (argv[0], argv[1:])
        if name in ("rl", "sft", "matrix", "coevolve"):
            shows = ("--results", "--report")  # they exclude --dry-run
            asked = [word for word in args if word not in shows]
            assert main([name, *asked, "--dry-run"]) == 0, f"{block}: {capsys.readouterr().err}"
            continue
        with pytest.raises(Parsed):
            parse(name, args)


class Parsed(Exception):
    """All flags were read."""


def parse(name: str, args: list[str]) -> None:
    import argparse

    module = import_module(COMMANDS[name])
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    spelled_out = getattr(module, "spelled_out", list)
    parser.parse_args(spelled_out(args))
    raise Parsed


TOML = [b for b in all_blocks() if b.how == "run" and b.language == "toml"]


@pytest.mark.parametrize("block", TOML, ids=str)
def test_toml_is_valid(block: Block) -> None:
    data = tomllib.loads(block.text)
    if data.keys() <= TaskSpec.model_fields.keys():
        template = shipped("tasks") / "_template/files/task.toml"
        TaskSpec.model_validate(merged(read_toml(template), data) | {"id": "myTask"})
        return
    if {"data", "checker"} <= data.keys():
        RowsSettings.model_validate(data)
        return
    base = {} if "max_steps" in data else read_toml(shipped("configs") / "quickstart.toml")
    whole = merged(base, data)
    if "embedded" not in data:  # prime-rl refuses this table
        assert schema.problems(whole, "rl") == []
    if "serve" not in whole["orchestrator"]["train"]["source"][0]:  # only prime-rl reads it
        overrides.build(RunConfig, overrides.MergedSettings(whole))


def merged(base: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """`new` over `base`; the one source of a fragment is the first of `base`'s."""
    found = dict(base)
    for key, value in new.items():
        old = found.get(key)
        if isinstance(old, list) and isinstance(value, Mapping):
            found[key] = [merged(old[0], value), *old[1:]]
        elif isinstance(old, list) and value and isinstance(value[0], Mapping):
            found[key] = [merged(old[0], value[0]), *value[1:]]
        elif isinstance(old, Mapping) and isinstance(value, Mapping):
            found[key] = merged(old, value)
        else:
            found[key] = value
    return found


def test_json_is_valid() -> None:
    for block in all_blocks():
        if block.language == "json":
            json.loads(block.text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_files_and_names_exist(page: Path) -> None:
    """Every file of the repository, and every name of the package, that a page mentions is there."""
    text = page.read_text(encoding="utf-8")
    for path in PATH.findall(text):
        if "/" in path and not any(
            any(folder.glob(path.rstrip("/"))) for folder in (ROOT, page.parent)
        ):
            raise AssertionError(f"{page.name}: there is no {path}")
    for name in NAME.findall(text):
        assert exists(name), f"{page.name}: there is no {name}"
    for owner, method in METHOD.findall(text):
        assert method in methods().get(owner, ()), f"{page.name}: there is no {owner}.{method}"


@cache
def methods() -> dict[str, set[str]]:
    """The names of the methods of each class of the package, by the class's name."""
    names: dict[str, set[str]] = {}
    for file in (ROOT / "air").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.ClassDef):
                functions = (ast.FunctionDef, ast.AsyncFunctionDef)
                own = {one.name for one in node.body if isinstance(one, functions)}
                names.setdefault(node.name, set()).update(own)
    return names


def exists(name: str) -> bool:
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: Any = import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        try:
            for part in parts[length:]:
                found = getattr(found, part)
        except AttributeError:
            return False
        return True
    return False


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_bytes()) <= 10_240
    for image in (ROOT / "docs/assets").iterdir():
        assert image.stat().st_size <= 200 * 1024
