"""The pages of configuration keys: those that air reads, and those that only prime-rl reads."""

from __future__ import annotations

from dataclasses import replace

from pydantic import BaseModel

from air.env.config import AirHarnessConfig, AirTasksetConfig, ResearchEnvConfig
from air.train.config.coevolve_config import CoevolveConfig
from air.train.config.matrix_config import MatrixConfig
from air.train.config.run_config import RunConfig
from air.train.config.sft_config import SFTRunConfig
from air.train.prime_rl import schema

from .markdown import Row, Section, cell, page
from .models import ENV, sections, toml_path

VERIFIERS_KEYS: dict[str, str] = {
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
"""Descriptions of verifiers' keys below `env` that have no docstring, or another meaning with air."""
LEAVES = ("agent.runtime", "agent.client", "agent.sampling", "agent.retries", "interception")
"""Tables below `env` that get no section of their own."""
DESCRIBED = ("timeout", "retries", "taskset", "agent", "agent.harness", "agent.timeout")
"""verifiers' tables below `env` that air describes; other tables of verifiers get no section."""
EVAL_ENV = "orchestrator.eval.source[].env"
"""Has the same keys as the environment of a training source, which are listed once."""
MODELS: dict[str, type[BaseModel]] = {
    ENV: ResearchEnvConfig,
    f"{ENV}.taskset": AirTasksetConfig,
    f"{ENV}.agent.harness": AirHarnessConfig,
}
"""air's own models, at keys that verifiers declares with a more general one."""


def run_file() -> list[Section]:
    """The keys of a run file, with those of air's environment."""
    known = schema.keys("rl")

    def engine(path: str) -> str:
        return "both" if path.startswith(ENV) or path in known else "embedded"

    def describe(path: str, docstring: str) -> str:
        return VERIFIERS_KEYS.get(_below_env(path), docstring)

    whole = sections(
        RunConfig, "", engine, choose=_run_model, title="The whole file", describe=describe
    )
    return [
        replace(section, rows=[_with_our_default(section, row) for row in section.rows])
        for section in whole
    ]


def _below_env(path: str) -> str:
    """The part of a key's path after the environment's; empty for keys outside the environment."""
    return path.removeprefix(f"{ENV}.") if path.startswith(f"{ENV}.") else ""


def _run_model(path: str, model: type[BaseModel]) -> type[BaseModel] | None:
    """The model to show at a key; None: no section."""
    below = _below_env(path)
    if path.startswith(EVAL_ENV) or below in LEAVES or (below and below not in DESCRIBED):
        return None
    if path in MODELS:
        return MODELS[path]
    return None if model.__module__.startswith("renderers") else model


def _with_our_default(section: Section, row: Row) -> Row:
    """`row` with air's own default of an agent's key, if it differs from verifiers'."""
    if section.path == f"{ENV}.agent":
        agent = ResearchEnvConfig.model_fields["agent"].default
        if row.name == "runtime":
            return replace(row, default=f'`type = "{agent.runtime.type}"`')
        if row.name == "max_turns":
            return replace(row, default=f"`{agent.max_turns}`")
    return row


def sft_file() -> list[Section]:
    """The keys of a run file of `sft`."""
    known = schema.keys("sft")

    def choose(path: str, model: type[BaseModel]) -> type[BaseModel] | None:
        return None if model.__module__.startswith("renderers") else model

    def engine(path: str) -> str:
        return "both" if path in known else "embedded"

    whole = sections(SFTRunConfig, "", engine, choose=choose, title="The whole file of `sft`")
    return list(whole)


def matrix_file() -> list[Section]:
    """The keys of a file of `air matrix`."""

    def choose(path: str, model: type[BaseModel]) -> type[BaseModel] | None:
        return model

    whole = sections(
        MatrixConfig,
        "",
        lambda _: "embedded",
        choose=choose,
        title="The whole file of `air matrix`",
    )
    return list(whole)


def coevolution_file() -> list[Section]:
    """The keys of a file of `air coevolve`."""

    def choose(path: str, model: type[BaseModel]) -> type[BaseModel] | None:
        return model

    whole = sections(
        CoevolveConfig,
        "",
        lambda _: "embedded",
        choose=choose,
        title="The whole file of `air coevolve`",
    )
    return list(whole)


def configuration_page() -> str:
    """The page of all keys."""
    return page(
        "Configuration keys",
        f"""Every key of a run file that the embedded engine reads, and every key of air's environment. Read
from the code of this version. A key outside this list is an error with the embedded engine. With
prime-rl, [many more keys](prime-rl-keys.md) exist.

Engine: **both** means that the embedded engine and prime-rl read the key with the same meaning.
**embedded** means that {schema.origin()} does not know the key. `….env` is short for
`orchestrator.train.source.env`; `orchestrator.eval.source.env` has the same keys.

On the command line a key is a flag with dots: `--trainer.optim.lr 1e-4`. A list element is named by its
position: `--orchestrator.train.source.0.env.delta best`. In TOML `"None"` stands for none.""",
        [
            ("Run files of `rl`", run_file()),
            ("Run files of `sft`", sft_file()),
            ("Files of `air matrix`", matrix_file()),
            ("Files of `air coevolve`", coevolution_file()),
        ],
        columns=("key", "type", "default", "meaning", "engine"),
    )


def prime_rl_page() -> str:
    """The page of the keys that only prime-rl reads."""
    ours = {
        toml_path(f"{section.path}.{row.name}".lstrip("."))
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
        if toml_path(key) not in ours and not key.startswith((ENV, EVAL_ENV)):
            lines.append(f"| `{key}` | {cell(', '.join(kinds))} |")
    return "\n".join(lines) + "\n"
