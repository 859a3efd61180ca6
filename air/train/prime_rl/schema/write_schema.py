"""Reads the schema of run files (their keys and types) from a checkout of prime-rl, and writes it to
`prime_rl.json`, with which `air.train.prime_rl.schema` checks run files.

Usage: `python -m air.train.prime_rl.schema.write_schema DIR`, where DIR is the checkout. The program
imports only prime-rl's pydantic models, from the source code in the checkout, and installs nothing.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AliasChoices, BaseModel

from air.errors import MissingError, UsageError
from air.train.prime_rl.schema import ANY, ENV, TABLE, Root

ROOTS: dict[Root, tuple[str, str]] = {
    "rl": ("prime_rl.configs.rl", "RLConfig"),
    "sft": ("prime_rl.configs.sft", "SFTConfig"),
    "evals": ("prime_rl.configs.evals", "EvalsConfig"),
    "env_server": ("prime_rl.configs.env_server", "EnvServerConfig"),
}
_NAMES: dict[Any, str] = {
    bool: "bool",
    int: "int",
    float: "float",
    str: "str",
    NoneType: "none",
    dict: "table",
}


def walk(model: type[BaseModel]) -> dict[str, list[str]]:
    """Returns a dict from the dotted path of each key of a pydantic model to the sorted names of the types
    that the key accepts. Keys of nested models are included."""
    keys: dict[str, set[str]] = {}
    _model(model, "", keys, ())
    return {path: sorted(types) for path, types in sorted(keys.items())}


def read(checkout: Path) -> dict[str, Any]:
    """Returns the schema of prime-rl's run files, read from a checkout of prime-rl, as a dict (see
    `air.train.prime_rl.schema.table`). Raises MissingError if the folder `checkout` is not a checkout of
    prime-rl."""
    sources = checkout / "packages" / "prime-rl-configs" / "src"
    if not (sources / "prime_rl" / "configs" / "rl.py").is_file():
        raise MissingError(
            "no checkout of prime-rl: packages/prime-rl-configs is not there",
            where=str(checkout),
            remedy="PRIME_RL=DIR names one",
        )
    sys.path.insert(0, str(sources))
    keys = {
        root: walk(getattr(importlib.import_module(module), name))
        for root, (module, name) in ROOTS.items()
    }
    project = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {
        "source": "prime-rl",
        "version": project["version"],
        "commit": _commit(checkout),
        "verifiers": version("verifiers"),
        "keys": keys,
    }


def main(argv: list[str]) -> int:
    """Reads the schema from the checkout of prime-rl that `argv` names, writes it to `prime_rl.json`, and
    returns the exit code 0. If `argv` is not exactly one folder with a checkout, prints an error and returns
    2."""
    if len(argv) != 1 or not argv[0]:
        print("error: PRIME_RL names no checkout — make schema PRIME_RL=DIR", file=sys.stderr)
        return 2
    try:
        table = read(Path(argv[0]).expanduser().resolve())
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    TABLE.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    count = ", ".join(f"{root} {len(keys)}" for root, keys in table["keys"].items())
    print(f"{TABLE}: prime-rl {table['version']} ({table['commit'][:7]}); keys: {count}")
    return 0


def _commit(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return result.stdout.strip() if result.returncode == 0 else "unknown"


def _model(
    model: type[BaseModel], at: str, keys: dict[str, set[str]], above: tuple[Any, ...]
) -> None:
    for name, field in model.model_fields.items():
        alias = field.validation_alias
        names = {name} | (
            {str(choice) for choice in alias.choices} if isinstance(alias, AliasChoices) else set()
        )
        for each in names:
            path = f"{at}.{each}".lstrip(".")
            for kind in _members(field.annotation):
                _kind(kind, path, keys, (*above, model))


def _kind(kind: Any, path: str, keys: dict[str, set[str]], above: tuple[Any, ...]) -> None:
    types = keys.setdefault(path, set())
    outer = get_origin(kind)
    if outer is Literal:
        types |= {
            f"'{value}'" if isinstance(value, str) else repr(value) for value in get_args(kind)
        }
    elif outer in (list, tuple, set):
        types.add("list")
        for inner in _members(get_args(kind)[0]):
            if _is_model(inner):
                _kind(inner, f"{path}[]", keys, above)
    elif outer is dict:
        types.add("table")
        for inner in _members(get_args(kind)[1]):
            _kind(inner, f"{path}.*", keys, above)
    elif _is_model(kind):
        verifiers = [b for b in kind.__mro__ if b.__module__.partition(".")[0] == "verifiers"]
        if any(base.__name__ == "EnvConfig" for base in verifiers):
            types.add(ENV)
        else:
            types.add("table")
            if kind not in above:
                _model(kind, path, keys, above)
    elif isinstance(kind, type) and issubclass(kind, Enum):
        types |= {f"'{member.value}'" for member in kind}
    elif isinstance(kind, type) and issubclass(kind, Path):
        types.add("str")
    else:
        types.add(_NAMES.get(kind, ANY))


def _members(annotation: Any) -> Iterator[Any]:
    """Yields the member types of a union type; for any other type, yields the type itself. Resolves type
    aliases and `Annotated` first."""
    while True:
        if hasattr(annotation, "__value__"):  # `type X = …` of Python 3.12
            annotation = annotation.__value__
        elif get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        else:
            break
    if get_origin(annotation) in (Union, UnionType):
        for member in get_args(annotation):
            yield from _members(member)
    else:
        yield annotation


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
