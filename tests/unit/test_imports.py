"""Imports go one way, in no circle, and no folder grows beyond a glance.

Every import counts: inside functions and under TYPE_CHECKING too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import air

ROOT = Path(air.__file__).parent
TESTS = Path(__file__).parents[1]
BENCH = TESTS.parent / "bench"
BASE = {"errors", "machine_failures", "config", "paths", "aio", "json_lines", "json_schema"}
BASE |= {"origin_check", "source_code"}
WORLDS = BASE | {"sandbox", "tasks", "rewards", "actions", "tools"}
ENV = WORLDS | {"worlds", "trajectories"}
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "config": {"errors"},
    "paths": {"errors"},
    "aio": set(),
    "json_lines": {"errors"},
    "json_schema": set(),
    "origin_check": set(),
    "machine_failures": {"errors"},
    "source_code": set(),
    "sandbox": BASE,
    "tasks": BASE | {"sandbox"},
    "worlds": WORLDS,
    "rewards": {"errors", "config"},
    "actions": {"errors", "config", "json_schema"},
    "tools": BASE | {"sandbox"},
    "trajectories": {"errors", "config", "paths", "json_lines"},
    "env": ENV,
    "__init__": {"env", "errors"},
    "testing": ENV | {"env"},
    "replay": ENV | {"env"},
    "manual": ENV | {"env", "replay"},
    "integrity": ENV | {"env", "testing", "train"},
    "train": ENV | {"env", "testing"},
    "serve": ENV | {"env", "train"},
    "view": ENV | {"env", "train"},
    "cli": ENV | {"env", "replay", "manual", "train", "testing", "view", "integrity", "serve"},
}
"""What each part may import besides itself. Nobody imports cli, and only cli imports serve and view."""
ONLY_IN: dict[str, set[str]] = {
    "verifiers": {"env", "replay", "manual", "train", "integrity"},
    "torch": {"train", "cli"},
    "transformers": {"train"},
    "renderers": {"env", "replay", "manual", "train"},
    "bm25s": {"tools"},
    "chess": {"tools"},
    "docker": {"sandbox"},
    "httpx2": {"tools"},
    "mcp": {"tools", "integrity"},
    "mcp_types": {"tools"},
    "starlette": {"serve", "train"},
    "uvicorn": {"serve", "train", "integrity"},
    "streamlit": {"view"},
    "altair": {"view"},
    "gymnasium": {"worlds"},
    "matplotlib": {"view"},
    "tensorboard": {"train"},
    "wandb": {"train"},
}
"""Packages that belong to some parts alone."""


def part(path: Path) -> str:
    """The part a file belongs to: `air/sandbox/wire/file_transfer.py` to `sandbox`."""
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


MOST_FILES = 14
"""Python files of one folder, beside its `__init__`."""


def sources() -> dict[str, Path]:
    """Every module of `air` by its dotted name."""
    files = [path for path in sorted(ROOT.rglob("*.py")) if "_shipped" not in path.parts]
    return {
        ".".join(("air", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(
            ".__init__"
        ): path
        for path in files
    }


def graph(modules: dict[str, Path]) -> dict[str, set[str]]:
    """Which module imports which, of these modules."""
    edges = {}
    for name, path in modules.items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        wanted = {module for _, module in imports(ast.parse(path.read_text("utf-8")), package)}
        # `from a.b import c` means the module a.b.c if there is one, else a.b.
        targets = {w if w in modules else w.rpartition(".")[0] for w in wanted}
        edges[name] = (targets & set(modules)) - {name}
    return edges


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Modules that import one another, directly or through others: those that no order can have."""
    rest = {name: set(targets) for name, targets in edges.items()}
    while free := {name for name, targets in rest.items() if not targets & set(rest)}:
        rest = {name: targets for name, targets in rest.items() if name not in free}
    found: list[list[str]] = []
    for start in sorted(rest):
        if any(start in circle for circle in found):
            continue
        circle = sorted(_reached(rest, start) & {n for n in rest if start in _reached(rest, n)})
        found += [circle] if circle else []
    return found


def _reached(edges: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    todo = [start]
    while todo:
        new = edges.get(todo.pop(), set()) - seen
        seen |= new
        todo += new
    return seen


def test_no_module_imports_itself_through_others() -> None:
    assert circles(graph(sources())) == []


def test_a_circle_is_seen() -> None:
    edges = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"a"}}
    assert circles(edges) == [["b", "c"]]


def test_no_folder_holds_more_files_than_a_glance_takes_in() -> None:
    folders = {path.parent for root in (ROOT, TESTS, BENCH) for path in root.rglob("*.py")}
    sizes = {str(folder): len(list(folder.glob("[!_]*.py"))) for folder in folders}
    assert {name: size for name, size in sizes.items() if size > MOST_FILES} == {}
