"""Reads and validates settings (configs), explains validation errors, imports plugins by name, and checks the
URLs of servers.

Every config class (pydantic class of settings) derives from `BaseConfig`. In the source code, a docstring
follows each field of a config class and describes it.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import json
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from air.errors import ConfigError, MissingError, UsageError


class BaseConfig(BaseModel):
    """The base class of configs (classes of settings): an immutable pydantic model that refuses unknown
    keys. The docstrings below the fields of a subclass become the descriptions of these fields."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True
    )


ConfigT = TypeVar("ConfigT", bound=BaseModel)
TOP_LEVEL = "(top level)"
"""The text that replaces the name of a key in an error message, if the error concerns the whole config and
not one key."""


def toml_or_text(text: str) -> Any:
    """Converts the text of a command-line flag to a value: the text `None` becomes None, text in TOML syntax
    (such as `3` or `[1, 2]`) becomes the value that it stands for, and any other text stays as it is."""
    if text == "None":
        return None
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except (ValueError, RecursionError):  # also a number with too many digits, or too deep nesting
        return text


def read_toml(path: Path) -> dict[str, Any]:
    """Returns the contents of a TOML file, or of a JSON file if its name ends in `.json`, as a dict. Raises
    MissingError if the file does not exist. Raises ConfigError if it cannot be read, is not valid TOML or
    JSON, or has no table (dict) at its top level."""
    kind = "JSON" if path.suffix == ".json" else "TOML"
    try:
        text = path.read_text(encoding="utf-8")
        data = json.loads(text) if kind == "JSON" else tomllib.loads(text)
    except FileNotFoundError:
        raise MissingError("no such file", where=str(path), remedy="check the path") from None
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=str(path)) from None
    except ValueError as error:  # TOMLDecodeError, JSONDecodeError, UnicodeDecodeError
        raise ConfigError(f"not valid {kind}: {error}", where=str(path)) from None
    except RecursionError:
        raise ConfigError(f"not valid {kind}: nested too deeply", where=str(path)) from None
    if not isinstance(data, dict):
        raise ConfigError("holds no table", where=str(path))
    return data


def validate(kind: type[ConfigT], data: dict[str, Any], *, where: str) -> ConfigT:
    """Checks the settings in `data`, and returns them as an object of the config class `kind`.
    Raises ConfigError if a key is unknown or has a bad value. The message begins with `where`, the file or
    setting from which `data` comes, and names the first such key."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        bad = first_problem(error, data)
        if bad.unknown:
            message = f"there is no key `{bad.name}`{bad.more}"
            raise ConfigError(
                message, where=where, remedy=suggestion(bad.path, key_paths(kind))
            ) from None
        raise ConfigError(bad.message, where=where, remedy=bad.remedy) from None


def plugin(path: str, folder: Path | None = None, where: str = "plugin") -> Any:
    """Imports and returns the object that `path` names. `path` has the form `module:name` or, if `folder` is
    given, also `file.py:name`; a relative file is looked up in `folder`. `where` is the setting that names
    the object, for error messages.

    A file is executed only once in a process. Its imports find modules on Python's path, but not the files
    beside it. Raises MissingError if the module, the file or the object does not exist. Raises ConfigError if
    `path` is malformed or the module or file raises an exception.
    """
    module, colon, name = path.rpartition(":")
    if not (module and colon and name):
        raise ConfigError(f"{path!r} must be of the form `module:name`", where=where)
    if folder is not None and module.endswith(".py"):
        return _plugin_of_file(folder / Path(module).expanduser(), name)
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise MissingError(
            f"{path!r} cannot be imported: {error}",
            where=where,
            remedy=f"install the package that has {module!r}, or put its folder on PYTHONPATH",
        ) from error
    except UsageError:
        raise
    except Exception as error:
        message = f"{module!r} cannot be imported: {type(error).__name__}: {error}"
        raise ConfigError(message, where=where, remedy="correct the module") from error


def _plugin_of_file(file: Path, name: str) -> Any:
    file = file.resolve()
    module_name = f"air_plugin_{hashlib.sha256(bytes(file)).hexdigest()[:16]}"
    module = sys.modules.get(module_name)
    if module is None:
        if not file.is_file():
            raise MissingError("no such file", where=str(file), remedy="check the path")
        spec = importlib.util.spec_from_file_location(module_name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module  # dataclasses and pickle look up their module
        try:
            spec.loader.exec_module(module)
        except BaseException as error:  # interrupts too: no half-imported module is left
            del sys.modules[module_name]
            if not isinstance(error, Exception) or isinstance(error, UsageError):
                raise
            message = f"cannot be imported: {type(error).__name__}: {error}"
            raise ConfigError(message, where=str(file), remedy="correct the file") from error
    try:
        return getattr(module, name)
    except AttributeError:
        raise MissingError(f"there is no object `{name}` in the file", where=str(file)) from None


def is_server(url: str) -> bool:
    """Returns whether `url` is the URL of an HTTP server, to which a path can be appended. Such a URL has
    `http://` or `https://` and a host, and may have a port (1 to 65535) and a path. It has no query,
    fragment, space or backslash."""
    import httpx

    try:
        parts = httpx.URL(url)
    except (httpx.InvalidURL, ValueError):
        return False
    if parts.scheme not in ("http", "https") or not parts.host:
        return False
    if parts.port is not None and not 0 < parts.port < 1 << 16:
        return False
    return not re.search(r"[\s\\?#]", url)


_REMEDIES = {
    "int": "give a whole number",
    "float": "give a number",
    "bool": "give true or false",
    "list": 'give a list, such as ["a", "b"], or as a flag: --KEY a b',
    "string": "give a text, in quotes",
    "missing": "set this key",
    "extra": "remove it",
}
"""The advice for the user about a wrong value, for error messages. Each key is the beginning of the names of
some pydantic error types: for example, `int` stands for `int_parsing` and `int_type`."""


@dataclass(frozen=True)
class ConfigProblem:
    """One error that pydantic found in a config (a set of settings), for example an unknown key, a missing
    key or a wrong value: where it is, and the pieces of an error message about it."""

    path: tuple[str, ...]
    """The place of the error: the names of the tables around the key, outermost first, and the key itself.
    Empty if the error concerns the whole config."""
    unknown: bool
    """True if the error is that the config class has no such key; false for every other error."""
    reason: str
    """What is wrong with the value, as one line of text without the key."""
    more: str
    """The text ` (and N more)` if pydantic found N further errors, else an empty string."""
    remedy: str = ""
    """The advice for the user about the value; empty if there is none."""

    @property
    def name(self) -> str:
        """The dotted path of the key with the error, such as `model.name`; `(top level)` if the error
        concerns the whole config."""
        return ".".join(self.path) or TOP_LEVEL

    @property
    def message(self) -> str:
        """One line of text: the dotted path of the key, what is wrong with its value, and `more`."""
        return f"`{self.name}`: {self.reason}{self.more}"


def first_problem(error: ValidationError, data: Any, *, quote: bool = True) -> ConfigProblem:
    """Returns one of the errors that pydantic found in `data`: the error to report to the user. This is the
    first error about an unknown key or, if there is none, the first error. An unknown key is often a mistyped
    key, and so the reason why a required key is missing. `data` may also be the bytes of a JSON text. With
    `quote`, the reason quotes the wrong value."""
    if isinstance(data, bytes):
        data = _json_or_none(data)
    errors = error.errors(include_url=False)
    first = next((one for one in errors if one["type"] == "extra_forbidden"), errors[0])
    count = len(errors)
    path = tuple(_keys(first["loc"], data))
    more = f" (and {count - 1} more)" if count > 1 else ""
    reason = first["msg"].removeprefix("Value error, ")
    if quote and first["type"] not in ("missing", "value_error", "json_invalid"):
        reason += f", got {first.get('input')!r:.80}"
    remedy = next((r for name, r in _REMEDIES.items() if first["type"].startswith(name)), "")
    return ConfigProblem(path, first["type"] == "extra_forbidden", reason, more, remedy)


def _json_or_none(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def key_paths(
    kind: type[BaseModel], subclasses: Mapping[type, type[BaseModel]] | None = None
) -> list[str]:
    """Returns the dotted paths of all keys of a config class, including the keys of nested config classes. In
    a path, `0` stands for any index of a list. `subclasses` maps classes to subclasses: where a field has one
    of these classes as its type, the result also has the keys of the subclass."""
    return list(dict.fromkeys(_paths(kind, "", subclasses or {}, ())))


def suggestion(path: Sequence[str], known: Iterable[str]) -> str:
    """Returns advice about an unknown key, as text for an error message. `path` has the names of the tables
    around the key and the key itself, and `known` the dotted paths of all keys that exist. The advice names
    the most similar key in the same table; if there is none, a key with the same name in another table; if
    there is none either, it says to remove the key or check its spelling."""
    parts = ["0" if part.isdigit() else part for part in path]
    table, name = ".".join(parts[:-1]), parts[-1]
    paths = [key.rpartition(".") for key in known]
    here = [last for above, _, last in paths if above == table and last != name]
    if similar := difflib.get_close_matches(name, here, n=1):
        return f"did you mean `{'.'.join([*path[:-1], similar[0]])}`?"
    elsewhere = [f"{a}{dot}{last}" for a, dot, last in paths if last == name and a != table]
    if elsewhere:
        return f"did you mean `{elsewhere[0]}`?"
    return "remove it or check its spelling"


def _paths(
    kind: type[BaseModel],
    above: str,
    subclasses: Mapping[type, type[BaseModel]],
    outer: tuple[type, ...],
) -> Iterator[str]:
    for name, field in kind.model_fields.items():
        path = f"{above}.{name}".lstrip(".")
        yield path
        for inner, in_list in _models(field.annotation):
            for each in dict.fromkeys((inner, subclasses.get(inner, inner))):
                if each not in outer:
                    below = f"{path}.0" if in_list else path
                    yield from _paths(each, below, subclasses, (*outer, kind, each))


def _models(annotation: Any, in_list: bool = False) -> Iterator[tuple[type[BaseModel], bool]]:
    """Yields the config classes in a type annotation, as pairs (class, in_list). `in_list` is true if the
    class is the type of the elements of a list or tuple."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, in_list
    within = in_list or getattr(annotation, "__origin__", None) in (list, tuple)
    for inner in get_args(annotation):
        yield from _models(inner, within)


def _keys(location: Sequence[int | str], data: Any) -> Iterator[str]:
    """Yields the path, part by part, of the key that has an error. `location` is the place of the error in
    `data` according to pydantic. It may also contain names of the members of a union type; these are left
    out. The result has those parts of `location` that are keys or indices in `data`, and always the last
    part."""
    for number, part in enumerate(location):
        inside = isinstance(data, dict) and part in data
        inside = inside or (isinstance(data, list) and isinstance(part, int) and part < len(data))
        if inside:
            data = data[part]
        if inside or number == len(location) - 1:
            yield str(part)
