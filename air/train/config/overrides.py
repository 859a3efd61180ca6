"""Reading `@ FILE` and flags: later files win over earlier ones, flags over files.

`rl @ a.toml @ b.toml --max-steps 20 --trainer.optim.lr 1e-4`: prime-rl's way of writing. Flags are dotted
and kebab-case; a value is read as TOML where it is TOML, as a string else; `None` is no value; a list
element is named by its position (`--orchestrator.train.source.0.env.delta best`).
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from air import paths
from air.config import read_toml
from air.errors import ConfigError

ConfigT = TypeVar("ConfigT", bound=BaseModel)


@dataclass
class Sources:
    """Merged settings, and where each of them came from."""

    data: dict[str, Any] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)
    origin: dict[tuple[str, ...], str] = field(default_factory=dict)
    """Dotted path of a leaf to the file or flag that set it."""

    def where(self, loc: Sequence[str]) -> str:
        """The file or flag that set the key at `loc`, or the nearest one above or below it."""
        path = tuple(loc)
        for length in range(len(path), 0, -1):
            for key, origin in self.origin.items():
                if key[:length] == path[:length]:
                    return origin
        return str(self.files[-1]) if self.files else "command line"


def parse(args: Sequence[str]) -> Sources:
    """Reads files and flags.

    Raises:
        MissingError: a file that is not there.
        ConfigError: not TOML, or an argument that is neither a file nor a flag.
    """
    sources, rest = Sources(), list(args)
    flags: list[tuple[str, str | None]] = []
    while rest:
        arg = rest.pop(0)
        if arg.startswith("@"):
            name = arg[1:] or (rest.pop(0) if rest else "")
            if not name:
                raise ConfigError("`@` needs a file", where="command line", remedy="write `@ FILE`")
            _merge_file(sources, Path(name).expanduser())
        elif arg.startswith("--") and len(arg) > 2:
            flag, equals, value = arg[2:].partition("=")
            follows = bool(rest) and not rest[0].startswith(("--", "@"))
            flags.append((flag, value if equals else rest.pop(0) if follows else None))
        else:
            raise ConfigError(
                f"unexpected argument {arg!r}",
                where="command line",
                remedy="files are given as `@ FILE`",
            )
    for flag, text in flags:
        _set_flag(sources, flag, text)
    return sources


def build(kind: type[ConfigT], sources: Sources) -> ConfigT:
    """Validates the merged settings.

    Raises:
        ConfigError: naming the file or flag, the key and the remedy.
    """
    try:
        return kind.model_validate(sources.data)
    except ValidationError as error:
        raise _explain(error, sources) from None


def dump(config: BaseModel) -> str:
    """The resolved config as JSON."""
    return json.dumps(config.model_dump(mode="json"), indent=2)


def _merge_file(sources: Sources, path: Path) -> None:
    path = _found(path)
    sources.files.append(path)
    _merge(sources, sources.data, read_toml(path), str(path), ())


def _found(path: Path) -> Path:
    """`path`, or the shipped file of that name where there is none: `configs/…` from any folder."""
    if path.exists() or path.is_absolute() or path.parts[:1] != ("configs",):
        return path
    shipped = paths.shipped("configs").joinpath(*path.parts[1:])
    return shipped if shipped.is_file() else path


def _merge(
    sources: Sources, into: dict[str, Any], new: dict[str, Any], origin: str, at: tuple[str, ...]
) -> None:
    for key, value in new.items():
        path = (*at, key)
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(sources, into[key], value, origin, path)
            continue
        into[key] = None if value == "None" else value
        _note(sources, value, origin, path)


def _note(sources: Sources, value: Any, origin: str, path: tuple[str, ...]) -> None:
    sources.origin[path] = origin
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, inner in items:
        _note(sources, inner, origin, (*path, str(key)))


def _set_flag(sources: Sources, flag: str, text: str | None) -> None:
    path = tuple(part.replace("-", "_") for part in flag.split("."))
    here: Any = sources.data
    for part in path[:-1]:
        here = _descend(here, part, flag)
    value = True if text is None else _value(text)
    if isinstance(here, list):
        here[_position(here, path[-1], flag)] = value
    elif isinstance(here, dict):
        here[path[-1]] = value
    else:
        raise ConfigError("goes below a value", where=f"--{flag}", remedy="check the dotted path")
    sources.origin = {k: v for k, v in sources.origin.items() if k[: len(path)] != path}
    # Flags come last and must be found first when a key is looked up.
    sources.origin = {path: f"--{flag}", **sources.origin}


def _descend(here: Any, part: str, flag: str) -> Any:
    if isinstance(here, list):
        return here[_position(here, part, flag)]
    if not isinstance(here, dict):
        raise ConfigError("goes below a value", where=f"--{flag}", remedy="check the dotted path")
    if here.get(part) is None:
        here[part] = {}
    return here[part]


def _position(here: list[Any], part: str, flag: str) -> int:
    if not part.isdigit() or int(part) >= len(here):
        raise ConfigError(
            f"{part!r} is not one of {len(here)} positions",
            where=f"--{flag}",
            remedy="positions count from 0",
        )
    return int(part)


def _value(text: str) -> Any:
    if text == "None":
        return None
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return text


def _explain(error: ValidationError, sources: Sources) -> ConfigError:
    first, count = error.errors()[0], error.error_count()
    loc = [str(part) for part in first["loc"]]
    key = ".".join(loc) or "(whole file)"
    more = f" (and {count - 1} more)" if count > 1 else ""
    where = sources.where(loc)
    if first["type"] == "extra_forbidden":
        return ConfigError(
            f"`{key}` is not a key that the embedded engine honours{more}",
            where=where,
            remedy="remove it or check its spelling; a key of prime-rl's needs that engine: "
            "--engine prime-rl",
        )
    message = first["msg"].removeprefix("Value error, ")
    given = (
        "" if first["type"] in ("missing", "value_error") else f", got {first.get('input')!r:.60}"
    )
    return ConfigError(f"`{key}`: {message}{given}{more}", where=where, remedy="correct it")
