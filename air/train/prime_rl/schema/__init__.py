"""Checks the run files (TOML) of prime-rl, an external training program, against a recorded schema, so that
prime-rl need not be installed.

The file `prime_rl.json` is the schema. It contains every key that a run file can have, the types that the key
accepts, and the version of prime-rl; `make schema PRIME_RL=DIR` writes it from a checkout of prime-rl. The
schema has no rules between keys and no bounds on numbers. It also has no keys inside a table `env`, because
`verifiers` and air define those.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

from air.config import suggestion
from air.errors import ConfigError

Root = Literal["rl", "sft", "evals", "env_server"]
TABLE = Path(__file__).with_name("prime_rl.json")
ENV = "verifiers env"
ANY = "any"


@cache
def table() -> dict[str, Any]:
    """Returns the recorded schema of prime-rl's run files, as a dict.

    The values at `source`, `version`, `commit` and `verifiers` say from which version of prime-rl the schema
    comes. The value at `keys` has an entry for each kind of run file (such as `rl`): a dict from the dotted
    path of every key to the names of the types that the key accepts. In a path, `[]` stands for an element of
    a list, and `*` for any key.
    """
    content: dict[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))
    return content


def origin() -> str:
    """Returns the name, version and commit of the prime-rl from which the schema was recorded, for messages
    to the user."""
    return f"{table()['source']} {table()['version']} ({table()['commit'][:7]})"


def keys(root: Root) -> dict[str, list[str]]:
    """Returns a dict from the dotted path of every key to the names of its allowed types. `root` is the kind
    of run file, such as `rl`."""
    types: dict[str, list[str]] = table()["keys"][root]
    return types


def has(path: Sequence[str], root: Root) -> bool:
    """Returns whether run files of the kind `root` (such as `rl`) can have a key at `path`. `path` consists
    of the names of the tables around the key, outermost first, and the name of the key. An element of a list
    is given by its index, as a string."""
    dotted = "".join("[]" if part.isdigit() else f".{part}" for part in path).lstrip(".")
    return dotted in keys(root) or _wildcard(keys(root), dotted) is not None


def leaves(data: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yields a tuple (path in the recorded schema, path in the run file, value) for every key of a run file,
    including keys whose values are TOML tables. Skips keys inside a table `env`."""
    yield from _leaves(data, "", "")


def problems(data: Mapping[str, Any], root: Root) -> list[str]:
    """Checks the run file `data` against the recorded schema of files of the kind `root`. Returns an error
    message for each key that the schema does not have, and for each value of a wrong type."""
    known, messages = keys(root), []
    paths = [path.replace("[]", ".0") for path in known]
    below = ""
    for path, name, value in leaves(data):
        if below and name.startswith(below):
            continue
        below = ""
        types = known.get(path) or _wildcard(known, path)
        if types is None:
            remedy = suggestion(name.split("."), paths)
            messages.append(f"there is no key `{name}` in {origin()} — {remedy}")
            below = f"{name}."
        elif not any(fits(value, kind) for kind in types):
            messages.append(f"`{name}` takes {' or '.join(types)}, not {value!r:.60}")
        if types is not None and ANY in types:
            below = f"{name}."
    return messages


def check(data: Mapping[str, Any], root: Root, *, where: str) -> None:
    """Raises ConfigError if the run file `data` has a key, or a value of a type, that the recorded schema of
    files of the kind `root` does not allow. The message describes the first such key, and begins with
    `where`, the name of the file."""
    messages = problems(data, root)
    if messages:
        more = f" (and {len(messages) - 1} more)" if len(messages) > 1 else ""
        raise ConfigError(f"{messages[0]}{more}", where=where)


def fits(value: Any, kind: str) -> bool:
    """Returns whether a TOML value has the type with the name `kind` in the recorded schema, such as `int`.
    The string "None" also has the type `none`, because TOML has no null value."""
    if kind.startswith("'"):
        return isinstance(value, str) and value == kind.strip("'")
    if kind == "none":
        return value is None or value == "None"
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return {
        "int": isinstance(value, int) and number,
        "float": number,
        "bool": isinstance(value, bool),
        "str": isinstance(value, str),
        "list": isinstance(value, list),
        "table": isinstance(value, dict),
        ENV: isinstance(value, dict),
    }.get(kind, True)


def _leaves(value: Any, path: str, name: str) -> Iterator[tuple[str, str, Any]]:
    if path:
        yield path, name, value
    if path.endswith(("source[].env", "source.env")) or path == "env":
        return
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}".lstrip("."), f"{name}.{key}".lstrip("."))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            if isinstance(inner, Mapping):
                yield from _leaves(inner, f"{path}[]", f"{name}.{index}")


def _wildcard(known: Mapping[str, list[str]], path: str) -> list[str] | None:
    """Returns the allowed types of the key at `path` if the key is inside a TOML table with arbitrary keys,
    such as `env_vars`; otherwise None. `known` has the allowed types of all recorded keys."""
    parts = path.split(".")
    for index in range(len(parts) - 1, 0, -1):
        free = ".".join([*parts[:index], "*", *parts[index + 1 :]])
        if free in known:
            return known[free]
    return None
