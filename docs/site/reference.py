"""The generated pages of the reference, each from the code that it describes.

    configuration.md   every key of a run file and of the environment, from the pydantic models
    prime-rl-keys.md   the keys that only prime-rl reads, from air's table of its schema
    commands.md        every command and flag, from argparse
    trajectory.md      every line of a trajectory, from `air.trajectories`
    task-toml.md       every key of `task.toml` and `solvers.toml`, from `air.tasks`

`missing()` names every key, flag or field without a description; a test requires that there is none.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import json
import textwrap
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

ENV = "orchestrator.train.source[].env"
NOT_OURS: dict[str, str] = {
    "timeout": "Wall-clock limits of the whole episode.",
    "timeout.episode": "Longest episode in seconds, whatever its task allows. None: no limit.",
    "timeout.finalize": "Longest end of an episode in seconds. None: no limit.",
    "agent.timeout": "Wall-clock limits of the agent. Only `rollout` may be set.",
    "agent.timeout.setup": "Must stay None: this limit would end air's own work.",
    "agent.timeout.rollout": "Longest work of the agent in seconds. None: the task's "
    "`limits.episode_seconds`.",
    "agent.timeout.finalize": "Must stay None: this limit would end air's own work.",
    "agent.timeout.scoring": "Must stay None: this limit would end air's own work.",
    "agent.retries": "Must stay empty: it has no effect in a lent box. Use `env.retries`.",
    "agent.runtime": "The kind of box. Only `type` has an effect: `docker` for containers, "
    "`subprocess` for process boxes. Image, limits and network come from the task.",
    "agent.harness": "The program that plays the episode, as a table with `id`.",
    "agent.harness.disabled_tools": "Tools that the program may not use. The harness `air` has none.",
    "retries": "How failed episodes are played again, each in a new box.",
    "taskset": "Which tasks are played, as a table with `id`.",
    "taskset.task": "Rewards, metrics, stops and judges of verifiers that are added to the task's own.",
    "taskset.system_prompt": "A file whose text comes before the action format in the system prompt.",
    "max_concurrent_agents": "Agents of one episode that run at once. air's episodes have one.",
    "interception": "How verifiers serves the model to an episode: `elastic`, `server` or `static`.",
    "id": "Which environment. Empty: that of the taskset, which for `air` is the one described here.",
}
"""Descriptions of keys of verifiers, below `env`, that have none or another meaning with air."""
LEAVES = ("agent.runtime", "agent.client", "agent.sampling", "agent.retries", "interception")
"""Keys below `env` whose tables are not taken apart."""


@dataclass(frozen=True)
class Row:
    """One key, flag or field."""

    name: str
    type: str
    default: str
    meaning: str
    engine: str = ""


@dataclass
class Section:
    """A table of rows under a heading."""

    title: str
    text: str = ""
    path: str = ""
    """Where the table stands in its file."""
    rows: list[Row] = field(default_factory=list)


# Pydantic models


@cache
def attribute_docs(kind: type) -> dict[str, str]:
    """The docstrings below the fields of a class and its bases; the most derived one wins."""
    docs: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base in (object, BaseModel):
            continue
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError):
            continue
        body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
        for node, below in pairwise(body):
            if (
                isinstance(node, ast.AnnAssign)
                and isinstance(node.target, ast.Name)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
                and isinstance(below.value.value, str)
            ):
                docs[node.target.id] = inspect.cleandoc(below.value.value)
    return docs


def described(kind: type[BaseModel], name: str) -> str:
    """The description of one field; empty if it has none."""
    return attribute_docs(kind).get(name) or kind.model_fields[name].description or ""


def type_text(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """A type for readers: `integer ≥ 1 or none`."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_text(args[0], args[1:])
    if origin in (Union, types.UnionType):
        rest = [arg for arg in args if arg is not type(None)]
        parts = list(dict.fromkeys(type_text(arg, metadata) for arg in rest))
        return " or ".join([*parts, *(["none"] if len(rest) < len(args) else [])])
    if origin is Literal:
        return " or ".join(json.dumps(arg) for arg in args)
    if origin in (list, tuple, set, frozenset):
        inner = [arg for arg in args if arg is not Ellipsis]
        if origin is tuple and len(inner) > 1:
            return f"list of {len(inner)}: {', '.join(type_text(arg) for arg in inner)}"
        return f"list of {plural(type_text(inner[0]))}" if inner else "list"
    name = getattr(origin or annotation, "__name__", str(annotation))
    plain = {
        "str": "string",
        "int": "integer",
        "float": "number",
        "bool": "true or false",
        "Path": "path",
        "dict": "table",
        "Mapping": "table",
        "Any": "any value",
    }
    if name in plain:
        return plain[name] + bounds(metadata)
    return "table" if inspect.isclass(annotation) and issubclass(annotation, BaseModel) else name


def plural(text: str) -> str:
    """A type as the element of a list."""
    return f"{text}s" if text in ("string", "integer", "number", "path", "table") else text


def bounds(metadata: Sequence[Any]) -> str:
    """The bounds of a number."""
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    found = [
        f"{sign} {value:g}"
        for item in metadata
        for name, sign in signs.items()
        if (value := getattr(item, name, None)) is not None
    ]
    return f" {' and '.join(found)}" if found else ""


def default_text(info: FieldInfo) -> str:
    """A default for readers."""
    if info.default_factory is not None:
        value = info.default_factory()  # type: ignore[call-arg]
    elif info.default is PydanticUndefined:
        return "**required**"
    else:
        value = info.default
    if isinstance(value, BaseModel):
        kind = getattr(value, "type", None)
        return f"`type = {json.dumps(kind)}`" if isinstance(kind, str) else ""
    if value is None:
        return "none"
    if isinstance(value, Path):
        value = str(value)
    if isinstance(value, tuple):
        value = list(value)
    return f"`{json.dumps(value)}`"


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """The pydantic models that a field takes."""
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for arg in get_args(annotation) for model in models_in(arg)]


def variant(kind: type[BaseModel]) -> str:
    """The `type` that selects a variant of a union."""
    info = kind.model_fields.get("type")
    return str(info.default) if info and isinstance(info.default, str) else kind.__name__


def sections(
    kind: type[BaseModel],
    path: str,
    engine: Callable[[str], str],
    *,
    choose: Callable[[str, type[BaseModel]], type[BaseModel] | None],
    title: str = "",
    describe: Callable[[str, str], str] = lambda path, text: text,
) -> Iterator[Section]:
    """A section for a model, then one for each model below it.

    Args:
        path: where it stands in the file; empty for the whole file.
        engine: which engines read a key, by its path.
        choose: the model to show for a key's path and declared model; None: the key has no section.
        describe: the description of a key, from its path and its docstring.
    """
    own = Section(title or f"`[{short(path)}]`", inspect.cleandoc(kind.__doc__ or ""), path)
    if not path or ("\n" not in own.text and own.text.endswith(("]`", "]`."))):
        own.text = ""
    if not kind.__module__.startswith("air."):
        own.text = ""  # in verifiers' words, for its own command line
    below: list[Section] = []
    for name, info in kind.model_fields.items():
        if info.exclude:
            continue
        key = f"{path}.{name}".lstrip(".")
        models = models_in(info.annotation)
        inner = [(model, chosen) for model in models if (chosen := choose(key, model))]
        many = get_origin(info.annotation) in (list, tuple)
        for model, chosen in inner:
            place = f"{key}[]" if many else key
            title = f"`[[{short(key)}]]`" if many else f"`[{short(place)}]`"
            if len(inner) > 1:
                title += f" with `type = {json.dumps(variant(model))}`"
            below += sections(chosen, place, engine, choose=choose, title=title, describe=describe)
        text = describe(key, described(kind, name))
        what = type_text(info.annotation, info.metadata)
        own.rows.append(Row(name, what, default_text(info), text, engine(key)))
    yield own
    yield from below


def shown(path: str) -> str:
    """A path as TOML writes it."""
    return path.replace("[]", "")


def short(path: str) -> str:
    """A path as TOML writes it, with `….env` for the environment."""
    return shown(path).replace(shown(ENV), "….env")


# The pages


def run_file() -> list[Section]:
    """The keys of a run file, with those of air's environment."""
    from air.env.config import AirHarnessConfig, AirTasksetConfig, ResearchEnvConfig
    from air.train.config.run_config import RunConfig
    from air.train.prime_rl import schema

    known = schema.keys("rl")

    def engine(path: str) -> str:
        return "both" if path.startswith(ENV) or path in known else "embedded"

    def choose(path: str, model: type[BaseModel]) -> type[BaseModel] | None:
        return {
            ENV: ResearchEnvConfig,
            f"{ENV}.taskset": AirTasksetConfig,
            f"{ENV}.agent.harness": AirHarnessConfig,
        }.get(path) or (None if is_leaf(path, model) else model)

    def is_leaf(path: str, model: type[BaseModel]) -> bool:
        below = path.removeprefix(f"{ENV}.")
        return below in LEAVES or model.__module__.startswith("renderers")

    def describe(path: str, text: str) -> str:
        below = path.removeprefix(f"{ENV}.") if path.startswith(ENV) else ""
        return NOT_OURS.get(below, text)

    found = list(sections(RunConfig, "", engine, choose=shallow(choose), title="The whole file",
                          describe=describe))  # fmt: skip
    for section in found:
        section.rows = [_as_used(section, row) for row in section.rows]
    return found


def shallow(
    choose: Callable[[str, type[BaseModel]], type[BaseModel] | None],
) -> Callable[[str, type[BaseModel]], type[BaseModel] | None]:
    """`choose`, without verifiers' own tables below the environment that air does not describe."""
    ours = ("timeout", "retries", "taskset", "agent", "agent.harness", "agent.timeout")

    def chosen(path: str, model: type[BaseModel]) -> type[BaseModel] | None:
        below = path.removeprefix(f"{ENV}.")
        if path.startswith(f"{ENV}.") and below not in ours:
            return None
        return choose(path, model)

    return chosen


def _as_used(section: Section, row: Row) -> Row:
    if section.path == f"{ENV}.agent":
        from air.env.config import ResearchEnvConfig

        agent = ResearchEnvConfig.model_fields["agent"].default
        if row.name == "runtime":
            return Row(
                row.name, row.type, f'`type = "{agent.runtime.type}"`', row.meaning, row.engine
            )
        if row.name == "max_turns":
            return Row(row.name, row.type, f"`{agent.max_turns}`", row.meaning, row.engine)
    return row


def sft_file() -> list[Section]:
    """The keys of a run file of `sft`."""
    from air.train.config.sft_config import SFTRunConfig
    from air.train.prime_rl import schema

    known = schema.keys("sft")

    def choose(path: str, model: type[BaseModel]) -> type[BaseModel] | None:
        return None if model.__module__.startswith("renderers") else model

    return list(
        sections(
            SFTRunConfig,
            "",
            lambda path: "both" if path in known else "embedded",
            choose=choose,
            title="The whole file of `sft`",
        )
    )


def configuration() -> str:
    """The page of all keys."""
    from air.train.prime_rl import schema

    return page(
        "Configuration keys",
        f"""Every key of a run file that the embedded engine reads, and every key of air's environment. Read
from the code of this version. A key outside this list is an error with the embedded engine. With
prime-rl, [many more keys](prime-rl-keys.md) exist.

Engine: **both** means that the embedded engine and prime-rl read the key with the same meaning.
**embedded** means that {schema.origin()} does not know it. `….env` is short for
`orchestrator.train.source.env`.

On the command line a key is a flag with dots: `--trainer.optim.lr 1e-4`. A list element is named by its
position: `--orchestrator.train.source.0.env.delta best`. In TOML `"None"` stands for none.""",
        [
            ("Run files of `rl`", run_file()),
            ("Run files of `sft`", sft_file()),
        ],
        columns=("key", "type", "default", "meaning", "engine"),
    )


def prime_rl_keys() -> str:
    """The page of the keys that only prime-rl reads."""
    from air.train.prime_rl import schema

    ours = {
        shown(f"{section.path}.{row.name}".lstrip("."))
        for section in run_file()
        for row in section.rows
    }
    lines = [
        "# Keys of prime-rl only",
        "",
        f"These keys of a run file are read by {schema.origin()} and refused by the embedded engine.",
        "prime-rl documents their meaning. `[]` stands for an element of a list, `*` for any name.",
        "",
        "| key | takes |",
        "|---|---|",
    ]
    for key, kinds in schema.keys("rl").items():
        if shown(key) not in ours and not key.startswith(ENV):
            lines.append(f"| `{key}` | {cell(', '.join(kinds))} |")
    return "\n".join(lines) + "\n"


def trajectory() -> str:
    """The page of the trajectory's lines."""
    from air.trajectories import trajectory as model

    kinds = {
        "start": model.Start,
        "step": model.Step,
        "validate": model.Validation,
        "end": model.End,
    }
    parts = (model.Call, model.ToolUse, model.TokenRef, model.Diff, model.FileChange, model.Test)
    found = [model_section(kind, f'Lines with `"type": "{name}"`') for name, kind in kinds.items()]
    found += [model_section(kind, f"`{kind.__name__}`") for kind in parts]
    from air.trajectories import VERSION

    return page(
        "Trajectory format",
        f"""One episode is one file, `trajectories/<episode>.jsonl`. Each line is a JSON object:
`{{"v": {VERSION}, "type": …, "t": …}}` and the fields below. `v` is the version of the format, `t` the time
in seconds since the epoch. The first line has the type `start`, the last one `end`. A line is written as
soon as it happened.

A reader must ignore fields that it does not know. air reads version 1 too: there, `observation` of a step is
what the model was shown, and `call`, `shown`, `diff`, `tokens` and the settings of the run are absent.
`air.trajectories.load(path)` reads a file of either version into the types below.""",
        [("Lines", found[: len(kinds)]), ("Parts of lines", found[len(kinds) :])],
        columns=("field", "type", "default", "meaning"),
    )


def task_toml() -> str:
    """The page of a task's files."""
    from air.tasks.check import Solvers
    from air.tasks.spec import TaskSpec

    def choose(path: str, model: type[BaseModel]) -> type[BaseModel] | None:
        return model

    none: Callable[[str], str] = lambda path: ""  # noqa: E731
    return page(
        "Files of a task",
        """Every key of `task.toml` and `solvers.toml`. [Tasks](../tasks.md) says how a task is made. A key
outside this list is an error.""",
        [
            ("`task.toml`", list(sections(TaskSpec, "", none, choose=choose, title="Top level"))),
            (
                "`solvers.toml`",
                list(sections(Solvers, "", none, choose=choose, title="Recorded solvers")),
            ),
        ],
        columns=("key", "type", "default", "meaning"),
    )


def model_section(kind: type[BaseModel], title: str) -> Section:
    """A model's own fields, without sections for what is below."""
    rows = [
        Row(name, _named(info), default_text(info), described(kind, name))
        for name, info in kind.model_fields.items()
    ]
    return Section(title, inspect.cleandoc(kind.__doc__ or ""), rows=rows)


def _named(info: FieldInfo) -> str:
    """A field's type, in which models are named."""
    text = type_text(info.annotation, info.metadata)
    for model in models_in(info.annotation):
        text = text.replace("table", model.__name__, 1)
    return text


# Commands


@dataclass
class Command:
    """One command or subcommand, as argparse knows it."""

    name: str
    parser: argparse.ArgumentParser
    help: str
    rest: bool = False


def commands() -> Iterator[Command]:
    """Every command of `air`, and its subcommands."""
    from air.cli.main import COMMANDS

    for name, module_name in COMMANDS.items():
        module = importlib.import_module(module_name)
        parser = argparse.ArgumentParser(prog=f"air {name}", description=module.HELP)
        module.add_arguments(parser)
        yield Command(
            f"air {name}", parser, module.HELP, bool(getattr(module, "TAKES_REST", False))
        )
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                helps = {one.dest: one.help or "" for one in action._choices_actions}
                for sub, inner in action.choices.items():
                    yield Command(f"air {name} {sub}", inner, helps.get(sub, ""))


def flags(command: Command) -> list[Row]:
    """A command's arguments and flags."""
    rows = []
    for action in command.parser._actions:
        if isinstance(action, argparse._HelpAction | argparse._SubParsersAction):
            continue
        names = ", ".join(f"`{name}`" for name in action.option_strings)
        value = action.metavar or (action.dest.upper() if action.nargs != 0 else "")
        value = " ".join(value) if isinstance(value, tuple) else value
        if action.option_strings:
            shown_name = f"{names} `{value}`" if value and action.nargs != 0 else names
        else:
            shown_name = f"`{action.metavar or action.dest}`"
        kind = ""
        if action.choices:
            kind = " or ".join(f"`{choice}`" for choice in action.choices)
        default = action.default
        told = "" if default in (None, False, argparse.SUPPRESS, []) else f"`{default}`"
        if isinstance(default, list | tuple) and default:
            told = f"`{' '.join(map(str, default))}`"
        if "core" in (action.help or ""):
            told = "the number of cores"
        rows.append(Row(shown_name, kind, told, (action.help or "").replace("%%", "%")))
    return rows


def command_pages() -> str:
    """The page of all commands."""
    lines = [
        "# Commands",
        "",
        "Every command with its flags. Read from the code of this version. `rl` is short for `air rl` and "
        "`sft` for `air sft`. `--debug` shows the traceback of an error, with every command.",
        "",
        "Exit codes: 0 done; 1 failed or mismatch; 2 bad input; 130 interrupted.",
        "",
    ]
    for command in commands():
        level = "##" if command.name.count(" ") == 1 else "###"
        lines += [f"{level} `{command.name}`", "", f"{sentence(command.help)}", ""]
        description = command.parser.description or ""
        if description and description != command.help:
            lines += [sentence(description), ""]
        if command.rest:
            lines += [
                "Further flags are keys of the run file: see [configuration keys](configuration.md).",
                "",
            ]
        if rows := flags(command):
            lines += table(("argument", "one of", "default", "meaning"), rows, code=False)
        if command.parser.epilog:
            lines += ["```text", command.parser.epilog, "```", ""]
    return "\n".join(lines) + "\n"


# Markdown


def sentence(text: str) -> str:
    """A help text as a sentence."""
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", ":", "!")) else ".")


def cell(text: str) -> str:
    """A text as a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def table(columns: Sequence[str], rows: Sequence[Row], *, code: bool = True) -> list[str]:
    """The lines of a table."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for row in rows:
        name = f"`{row.name}`" if code else row.name
        cells = [name, row.type, row.default, row.meaning, row.engine][: len(columns)]
        lines.append("| " + " | ".join(cell(one) for one in cells) + " |")
    return [*lines, ""]


def page(
    title: str,
    text: str,
    chapters: Sequence[tuple[str, Sequence[Section]]],
    *,
    columns: Sequence[str],
) -> str:
    """A page of tables."""
    lines = [f"# {title}", "", text, ""]
    for name, parts in chapters:
        lines += [f"## {name}", ""]
        for section in parts:
            lines += [f"### {section.title}", ""]
            if section.text:
                lines += [section.text, ""]
            lines += table(columns, section.rows)
    return "\n".join(lines) + "\n"


PAGES: dict[str, Callable[[], str]] = {
    "configuration.md": configuration,
    "prime-rl-keys.md": prime_rl_keys,
    "commands.md": command_pages,
    "trajectory.md": trajectory,
    "task-toml.md": task_toml,
}
"""Every generated page, below `reference/`."""


def missing() -> list[str]:
    """Every key, flag and field without a description, one line each."""
    from air.tasks.check import Solvers
    from air.tasks.spec import TaskSpec
    from air.trajectories import trajectory as model

    found = []
    everything = {"run file": run_file(), "sft file": sft_file()}
    everything["trajectory"] = [
        model_section(kind, kind.__name__)
        for kind in vars(model).values()
        if inspect.isclass(kind) and issubclass(kind, model.Line) and kind is not model.Line
    ]
    for kind in (TaskSpec, Solvers):
        everything[kind.__name__] = list(
            sections(kind, "", lambda path: "", choose=lambda path, inner: inner)
        )
    for where, parts in everything.items():
        for section in parts:
            found += [f"{where}: {section.title} {r.name}" for r in section.rows if not r.meaning]
    for command in commands():
        if not command.help:
            found.append(f"command: {command.name}")
        found += [f"flag: {command.name} {r.name}" for r in flags(command) if not r.meaning]
    return found


if __name__ == "__main__":
    for name, make in PAGES.items():
        print(f"{name}: {len(make())} characters")
    print("\n".join(missing()))
