"""Imports go one way: each import in `air`, inside functions too, stays within what is allowed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import air

ROOT = Path(air.__file__).parent
BASE = {"errors", "config", "paths", "aio"}
WORLDS = BASE | {"sandbox", "tasks", "rewards", "actions"}
ENV = WORLDS | {"worlds", "trajectories"}
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "config": {"errors"},
    "paths": {"errors"},
    "aio": set(),
    "sandbox": BASE,
    "tasks": BASE | {"sandbox"},
    "worlds": WORLDS,
    "rewards": {"errors", "config"},
    "actions": {"errors", "config"},
    "trajectories": {"errors", "config"},
    "env": ENV,
    "__init__": {"env", "errors"},
    "testing": ENV | {"env"},
    "replay": ENV | {"env"},
    "manual": ENV | {"env", "replay"},
    "train": ENV | {"env", "testing"},
    "serve": ENV | {"env", "train"},
    "view": ENV | {"env", "train"},
    "cli": ENV | {"env", "replay", "manual", "train", "testing", "view"},
}
"""What each part may import besides itself. Nobody imports serve and cli, and view only cli."""
ONLY_IN: dict[str, set[str]] = {
    "verifiers": {"env", "replay", "manual", "train"},
    "torch": {"train", "cli"},
    "transformers": {"train"},
    "renderers": {"env", "replay", "manual", "train"},
    "docker": {"sandbox"},
    "fastapi": {"serve"},
    "streamlit": {"view"},
    "altair": {"view"},
}
"""Packages that belong to some parts alone."""


def part(path: Path) -> str:
    """The part a file belongs to: `air/sandbox/wire/folders.py` to `sandbox`."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(tree: ast.AST, package: str) -> Iterator[tuple[int, str]]:
    """Every (line, dotted module) that a file imports, anywhere in it; `package` is the file's."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            module = ".".join((above if node.level else []) + [node.module or ""]).strip(".")
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            name = node.func.id if isinstance(node.func, ast.Name) else name
            if name in {"import_module", "__import__"} and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value


def violations(source: str, path: Path) -> list[str]:
    """What a file imports and may not, one line each."""
    here, found = part(path), []
    package = ".".join(("air", *path.relative_to(ROOT).parts[:-1]))
    for line, module in imports(ast.parse(source), package):
        top, _, rest = module.partition(".")
        target = rest.partition(".")[0]
        where = f"{path.relative_to(ROOT.parent)}:{line}"
        if top == "air" and target in ALLOWED and target not in ALLOWED[here] | {here}:
            found.append(f"{where}: air.{here} may not import air.{target}")
        if here not in ONLY_IN.get(top, {here}):
            found.append(f"{where}: only air.{', air.'.join(ONLY_IN[top])} may import {top}")
    return found


def test_imports_go_one_way() -> None:
    files = sorted(ROOT.rglob("*.py"))
    files = [path for path in files if "_shipped" not in path.parts]
    assert len(files) > 5
    assert not [v for path in files for v in violations(path.read_text("utf-8"), path)]


def test_every_part_has_a_rule() -> None:
    parts = {part(p) for p in ROOT.rglob("*.py") if "_shipped" not in p.parts}
    assert parts <= set(ALLOWED)


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("sandbox/x.py", "from air.tasks import spec"),
        ("sandbox/x.py", "def f():\n    import air.tasks.spec"),
        ("sandbox/x.py", "from air import tasks"),
        ("sandbox/x.py", "from ..tasks import spec"),
        ("sandbox/x.py", "from .. import tasks"),
        ("actions/x.py", "from air.sandbox.contract.box import Box"),
        ("train/x.py", "import importlib\nimportlib.import_module('air.cli.main')"),
        ("worlds/x.py", "import verifiers.v1 as vf"),
        ("env/x.py", "def f():\n    import torch"),
    ],
)
def test_a_forbidden_import_is_seen(file: str, source: str) -> None:
    assert len(violations(source, ROOT / file)) == 1


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("sandbox/x.py", "from .base import Box\nfrom air.errors import AirError\nimport json"),
        ("tasks/x.py", "from air.sandbox.contract.box import Box\nfrom . import spec"),
        ("cli/x.py", "def f():\n    from air.train import loop"),
    ],
)
def test_an_allowed_import_is_not(file: str, source: str) -> None:
    assert violations(source, ROOT / file) == []
