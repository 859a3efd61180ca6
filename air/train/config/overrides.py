"""Merges run files (TOML) and command-line flags into one set of settings; later files and flags win.

The syntax is prime-rl's, read by the same package (`prime-pydantic-config`): `rl @ a.toml @ b.toml
--max-steps 20 --trainer.optim.lr 1e-4`. A flag is the dotted path of a key, in kebab-case. `--x` switches a
boolean on or creates an optional table, `--no-x` switches it off or removes it, `--x a b` sets a list, `--x @
FILE` fills a table from a file, and the value `None` unsets a key.

Air adds two rules. A number in a path names an element of a list
(`--orchestrator.train.source.0.env.delta best`). If the schema (the run file's pydantic class) defines no
type for a key, its value is read as TOML; a value that is not valid TOML is text.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, get_args

import pydantic_config
from pydantic import BaseModel, ValidationError
from pydantic_config import ConfigFileError

from air import paths
from air.config import first_problem, key_paths, read_toml, suggestion, toml_or_text
from air.errors import ConfigError
from air.train.prime_rl import schema

ConfigT = TypeVar("ConfigT", bound=BaseModel)


@dataclass
class MergedSettings:
    """The merged settings of run files (TOML) and command-line flags, and which file or flag set each key."""

    data: dict[str, Any] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)
    origin: dict[tuple[str, ...], str] = field(default_factory=dict)
    """Maps the path of a key (its names from the outermost table on) to the file or flag that set the key."""

    def where(self, loc: Sequence[str]) -> str:
        """Returns the file or flag that set a key, for error messages. `loc` is the path of the key: its
        names from the outermost table on. If no file or flag set this key, returns the file or flag of the
        key whose path has the longest common beginning with `loc`. If there is no such key, returns the last
        run file or, without run files, `command line`."""
        path = tuple(loc)
        for length in range(len(path), 0, -1):
            for key, origin in self.origin.items():
                if key[:length] == path[:length]:
                    return origin
        return str(self.files[-1]) if self.files else "command line"

    def place(self, dotted: str) -> str:
        """Returns `PLACE: KEY` for error messages: the file or flag that set a key, and the key itself.
        `dotted` is the dotted path of the key, such as `trainer.optim.lr`."""
        return f"{self.where(dotted.split('.'))}: {dotted}"


def parse(args: Sequence[str], kind: type[BaseModel]) -> MergedSettings:
    """Reads the run files (`@ FILE`) and flags in the command-line arguments `args`, and returns the merged
    settings. `kind`, the pydantic class of the run file, defines which flags are switches, lists and tables.
    Raises MissingError if a file does not exist. Raises ConfigError if a file is not TOML, if an argument is
    neither a file nor a flag, or if a flag does not fit the schema `kind`."""
    merged = read_files(args)
    apply_flags(merged, args, kind)
    return merged


def read_files(args: Sequence[str], kind: type[BaseModel] | None = None) -> MergedSettings:
    """Reads the run files (`@ FILE`) in the command-line arguments `args`, ignores the flags, and returns the
    merged settings. If `kind` is given, each file is checked for values of other types at keys that are
    tables in this pydantic class: later settings could replace such a value without a message. Raises
    MissingError if a file does not exist. Raises ConfigError if a file is not TOML or has such a value, or if
    an argument is neither a file nor a flag."""
    merged = MergedSettings()
    for flag, values in _words(args):
        if isinstance(values, Path):
            _merge_file(merged, values, _path(flag) if flag else (), kind)
    return merged


def put(merged: MergedSettings, settings: Mapping[str, Any], origin: str) -> None:
    """Merges the nested dict `settings` into `merged`, key by key, and overrides earlier values; a list
    replaces the whole earlier list. `origin` says in error messages where these settings come from, such as a
    file's path."""
    _merge(merged, merged.data, copy.deepcopy(dict(settings)), origin, ())


def refuse(
    settings: Mapping[str, Any],
    remedies: Mapping[str, str],
    owner: str,
    place: Callable[[str], str],
) -> None:
    """Raises ConfigError if the user has set a key that a larger experiment (a matrix or co-evolution of
    several trainings) sets itself. `settings` are the user's settings for the trainings. `remedies` maps the
    dotted path of each such key to a text that says what the user can do instead. `owner` names the
    experiment in error messages, such as `the matrix`. `place` is a function that turns a dotted path into
    the place where the user set the key."""
    for dotted, remedy in remedies.items():
        *tables, key = dotted.split(".")
        value: Any = settings
        for depth, table in enumerate(tables):
            value = value.get(table)
            if value in (None, "None"):
                break
            if not isinstance(value, dict):
                outer = ".".join(tables[: depth + 1])
                raise _no_table(value, place(outer))
        else:
            if value.get(key) not in (None, "None"):
                raise ConfigError(
                    f"{owner} sets this key for each training", where=place(dotted), remedy=remedy
                )


def apply_flags(
    merged: MergedSettings, args: Sequence[str], kind: type[BaseModel], *, shown: str = ""
) -> None:
    """Sets in `merged` the keys of all flags in the command-line arguments `args`. `kind` is the pydantic
    class of the run file. Error messages about a wrong value name the flag that set it or, if `shown` is not
    empty, the text `shown` instead. Raises ConfigError if an argument is neither a file nor a flag, or if a
    flag does not fit the schema `kind`."""
    for flag, values in _words(args):
        if not isinstance(values, Path):
            _set_flag(merged, flag, values, kind, shown or f"--{flag}")


def _words(args: Sequence[str]) -> Iterator[tuple[str, list[str] | Path]]:
    """Splits command-line arguments into flags and files. Yields a pair (flag's name, list of its values) for
    each flag, and a pair (table, path) for each file. `table` is `x` for `--x @ FILE`, which fills only the
    table `x` of the settings; it is an empty string for other files. Raises ConfigError for any other
    argument."""
    rest = list(args)
    while rest:
        word = rest.pop(0)
        flag = ""
        if word.startswith("--") and len(word) > 2:
            flag = word[2:]
            if not (rest and rest[0].startswith("@")) or "=" in flag:
                values = []
                while rest and not rest[0].startswith(("--", "@")):
                    values.append(rest.pop(0))
                flag, equals, value = flag.partition("=")
                yield flag, [value, *values] if equals else values
                continue
            word = rest.pop(0)
        if not word.startswith("@"):
            raise ConfigError(
                f"unexpected argument {word!r}",
                where="command line",
                remedy="files are given as `@ FILE`",
            )
        name = word[1:] or (rest.pop(0) if rest else "")
        if not name:
            raise ConfigError("`@` needs a file", where="command line", remedy="write `@ FILE`")
        yield flag, Path(name).expanduser()


def build(kind: type[ConfigT], merged: MergedSettings) -> ConfigT:
    """Checks the merged settings and returns them as an object of the class `kind`. Raises ConfigError if a
    key is unknown or missing, or its value invalid; the message names the key and the file or flag that set
    it."""
    given = copy.deepcopy(merged.data)  # a copy, because validation changes its input
    try:
        config = kind.model_validate(merged.data)
    except ValidationError as error:
        raise _explain(error, merged, kind) from None
    _refuse_switches(given, config, merged, ())
    return config


def dump(config: BaseModel) -> str:
    """Returns a config, including all keys that have their default values, as JSON text."""
    return json.dumps(config.model_dump(mode="json"), indent=2)


def _merge_file(
    merged: MergedSettings,
    path: Path,
    below: tuple[str, ...],
    kind: type[BaseModel] | None,
) -> None:
    path = _or_shipped(path)
    merged.files.append(path)
    data = read_toml(path)
    for part in reversed(below):
        data = {part: data}
    if kind is not None:
        _check_tables(data, [kind], f"{path}: ")
    _merge(merged, merged.data, data, str(path), ())


def _check_tables(data: Mapping[str, Any], models: Sequence[type[BaseModel]], place: str) -> None:
    """Raises ConfigError if a key in `data` that is a table in each of the pydantic classes `models` that
    have this key has a value that is no table. `place` is the place of `data` in error messages; the key's
    name follows it."""
    for key, value in data.items():
        fields = [m.model_fields[key].annotation for m in models if key in m.model_fields]
        kinds = {kind for annotation in fields for kind in _unpacked(annotation)} - {type(None)}
        tables = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if isinstance(value, dict):
            _check_tables(value, tables, f"{place}{key}.")
        elif tables and len(tables) == len(kinds) and value not in (None, "None"):
            raise _no_table(value, f"{place}{key}")


def _no_table(value: object, where: str) -> ConfigError:
    return ConfigError(f"must be a table, not {value!r}", where=where, remedy="remove it")


def _or_shipped(path: Path) -> Path:
    """Returns `path`. If `path` does not exist and begins with `configs/`, returns the path of the run file
    with this name that is shipped with air, if there is one."""
    if path.exists() or path.is_absolute() or path.parts[:1] != ("configs",):
        return path
    shipped = paths.shipped("configs").joinpath(*path.parts[1:])
    return shipped if shipped.is_file() else path


def _merge(
    merged: MergedSettings,
    into: dict[str, Any],
    new: dict[str, Any],
    origin: str,
    at: tuple[str, ...],
) -> None:
    for key, value in new.items():
        path = (*at, key)
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(merged, into[key], value, origin, path)
            continue
        into[key] = None if value == "None" else value
        _note(merged, value, origin, path)


def _note(merged: MergedSettings, value: Any, origin: str, path: tuple[str, ...]) -> None:
    merged.origin[path] = origin
    if isinstance(value, list):
        value = dict(enumerate(value))
    if isinstance(value, dict):
        for key, inner in value.items():
            _note(merged, inner, origin, (*path, str(key)))


def _set_flag(
    merged: MergedSettings, flag: str, values: list[str], kind: type[BaseModel], shown: str
) -> None:
    path, value = _read_flag(flag, values, kind)
    here: Any = merged.data
    for part in path[:-1]:
        here = _descend(here, part, flag)
    if isinstance(here, list):
        here[_position(here, path[-1], flag)] = value
    elif isinstance(here, dict):
        here[path[-1]] = value
    else:
        raise ConfigError("leads below a value", where=f"--{flag}", remedy="check the dotted path")
    merged.origin = {k: v for k, v in merged.origin.items() if k[: len(path)] != path}
    # The flag goes first, so that `MergedSettings.where` finds the flag before the files.
    merged.origin = {path: shown, **merged.origin}


def _read_flag(
    flag: str, values: list[str], kind: type[BaseModel]
) -> tuple[tuple[str, ...], object]:
    """Reads one command-line flag, whose name is `flag` (without the leading `--`). Returns the path of the
    key that the flag sets, as a tuple of names, and the key's new value."""
    clears = flag.startswith("no-") and not _types_at(kind, _path(flag))[0]
    name = flag.removeprefix("no-") if clears else flag
    path = _path(name)
    kinds, within, start = _types_at(kind, path)
    if not kinds:
        if clears and not values:
            return path, False
        read = [toml_or_text(text) for text in values]
        return path, True if not read else read[0] if len(read) == 1 else read
    local = "--" + ("no-" if clears else "") + ".".join(name.split(".")[start:])
    raw = _by_schema([local, *values], within, flag)
    for part in path[start:]:
        raw = raw[part]
    text = {str, Path} & {*kinds, *(one for k in kinds for one in _unpacked(k, elements=True))}
    return path, raw if text and raw != "None" else _typed(raw)


def _typed(raw: Any) -> Any:
    """Parses a string as a TOML value; a string that is not valid TOML stays a string. Parses each element of
    a list, and returns any other value unchanged."""
    if isinstance(raw, list):
        return [_typed(one) for one in raw]
    return toml_or_text(raw) if isinstance(raw, str) else raw


def _by_schema(argv: list[str], kind: type[BaseModel], flag: str) -> Any:
    """Parses one flag with the package `prime-pydantic-config`, by the types in the class `kind`, and returns
    nested dicts: `--a.b 3` becomes `{"a": {"b": 3}}`. Checks no values. `argv` are the flag and its values;
    `flag` is its name in error messages. Raises ConfigError if the package refuses the flag."""

    class Unchecked(kind):  # type: ignore[valid-type, misc]
        """A subclass of `kind` that does not check values. The function `build` checks them later, after all
        settings have been merged."""

        @classmethod
        def model_validate(cls, obj: Any, **_: Any) -> Any:
            return obj

    try:
        return pydantic_config.cli(Unchecked, args=argv)
    except (ConfigFileError, json.JSONDecodeError) as error:
        text = " ".join(str(error).split()).replace(
            "Unrecognized arguments", "unexpected arguments"
        )
        raise ConfigError(text, where=f"--{flag}", remedy="see docs/reference") from None


def _types_at(
    kind: type[BaseModel], path: tuple[str, ...]
) -> tuple[list[Any], type[BaseModel], int]:
    """Finds the key with the path `path` in the pydantic class `kind`, so that the value of its flag can be
    parsed. Returns a tuple (types, class, start).

    `types` lists the types that the key may have. The list is empty if `kind` has no such key, or if the path
    ends with a list index. If the path has a list index, `class` is the pydantic class of the list element at
    the last index, and `path[start:]` is the path of the key below this element. If the path has no index,
    `class` is `kind` and `start` is 0.
    """
    here: list[Any] = [kind]
    within, start = kind, 0
    for at, part in enumerate(path):
        models = [m for m in here if isinstance(m, type) and issubclass(m, BaseModel)]
        if part.isdigit():
            here = [inner for kind_ in here for inner in _unpacked(kind_, elements=True)]
            models = [m for m in here if isinstance(m, type) and issubclass(m, BaseModel)]
            if len(models) != 1:
                return [], within, start
            within, start = models[0], at + 1
            continue
        fields = [m.model_fields[part].annotation for m in models if part in m.model_fields]
        if not fields:
            return [], within, start
        here = [inner for annotation in fields for inner in _unpacked(annotation)]
    return here if start < len(path) else [], within, start


def _unpacked(annotation: Any, *, elements: bool = False) -> list[Any]:
    """Returns a list with the member types of a union type; for any other type, a list with only this type.
    If `elements` is true, returns instead the element types of those of these types that are lists."""
    origin, inner = getattr(annotation, "__origin__", None), get_args(annotation)
    if hasattr(annotation, "__metadata__"):
        return _unpacked(inner[0], elements=elements)
    if origin is list:
        return _unpacked(inner[0]) if elements else [annotation]
    if inner and origin is not dict:
        return [kind for one in inner for kind in _unpacked(one, elements=elements)]
    return [] if elements else [annotation]


def _path(flag: str) -> tuple[str, ...]:
    return tuple(part.replace("-", "_") for part in flag.split("."))


def _descend(here: Any, part: str, flag: str) -> Any:
    if isinstance(here, list):
        return here[_position(here, part, flag)]
    if not isinstance(here, dict):
        raise ConfigError("leads below a value", where=f"--{flag}", remedy="check the dotted path")
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


def _explain(error: ValidationError, merged: MergedSettings, kind: type[BaseModel]) -> ConfigError:
    """Turns pydantic's `error` about the merged settings into a ConfigError, which the caller raises. Its
    text names the key that is unknown or has an invalid value, the file or flag that set the key, and a
    remedy. `kind` is the pydantic class of the settings."""
    bad = first_problem(error, merged.data)
    where = merged.where(bad.path)
    if not bad.unknown:
        return ConfigError(bad.message, where=where, remedy=bad.remedy)
    root: schema.Root = "sft" if "data" in kind.model_fields else "rl"
    if schema.has(bad.path, root):
        remedy = "remove it" + ("" if root == "sft" else ", or train with --engine prime-rl")
        message = f"`{bad.name}` is a key of prime-rl that the embedded engine does not have"
        return ConfigError(f"{message}{bad.more}", where=where, remedy=remedy)
    known = key_paths(kind, _own_subclasses())
    return ConfigError(
        f"there is no key `{bad.name}`{bad.more}", where=where, remedy=suggestion(bad.path, known)
    )


def _own_subclasses() -> dict[type, type[BaseModel]]:
    """Returns a dict that maps settings classes of the package `verifiers` to air's subclasses of them. The
    subclasses have more keys (of the table `env` and the tables below it), which must be known to suggest the
    right spelling of an unknown key."""
    import verifiers.v1 as vf

    from air.env.config import AirHarnessConfig, AirTasksetConfig, ResearchEnvConfig

    return {
        vf.EnvConfig: ResearchEnvConfig,
        vf.TasksetConfig: AirTasksetConfig,
        vf.HarnessConfig: AirHarnessConfig,
    }


def _refuse_switches(data: Any, config: Any, merged: MergedSettings, path: tuple[str, ...]) -> None:
    """Raises ConfigError if a key that needs a number has the value true or false, for example because of a
    flag without a value. Without this check, pydantic would read true as 1 and false as 0. `data` are the
    settings as given, `config` the checked settings, and `path` the path of both from the outermost table
    on."""
    if isinstance(data, bool) and isinstance(config, int | float) and not isinstance(config, bool):
        where = merged.where(path)
        problem = "needs a value" if where.startswith("--") else f"must be a number, not {data}"
        raise ConfigError(f"`{'.'.join(path)}` {problem}".replace("True", "true"), where=where)
    for key, inner in _items(data):
        if isinstance(config, list | tuple):
            value = config[key]
        else:
            value = config.get(key) if isinstance(config, dict) else getattr(config, key, None)
        _refuse_switches(inner, value, merged, (*path, str(key)))


def _items(data: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(data, dict):
        yield from data.items()
    elif isinstance(data, list):
        yield from enumerate(data)
