"""Turns the settings of a co-evolution into the settings of its trainings and evaluations.

A co-evolution trains two models in rounds: a proposer, which writes questions, and an executor, which answers
them. This module also checks that the existing content of the co-evolution's folder was made with the same
settings. `air.train.coevolve.files` describes the folder.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from air import paths
from air.env.config import ResearchEnvConfig
from air.errors import ConfigError, UsageError
from air.rewards.proposals.agreement import check_equality
from air.tools import ToolSet, load
from air.train.coevolve.files import (
    EXECUTOR,
    FILE,
    HELD_OUT,
    HELD_OUT_FILE,
    PAYMENT_FILE,
    POSED_FILE,
    PROPOSER,
    ROUND,
    ROWS,
)
from air.train.config import overrides
from air.train.config.coevolve_config import CoevolveConfig, SideConfig
from air.train.config.run_config import RunConfig
from air.train.evaluation.recorded import Evaluation
from air.train.evaluation.settings import Settings
from air.train.matrix.plan import single_taskset
from air.worlds.proposals.posed import read_rows, tool_set

_SET_BY_COEVOLUTION = {
    "output_dir": "set `output_dir` of the co-evolution (--output-dir)",
    "run.name": "set `name` of the co-evolution (--name)",
    "embedded.seed": "set `seed` of the co-evolution (--seed)",
    "resume": "remove it; the same command continues a co-evolution",
}
"""Maps each key that the user may set neither in the run files nor in the tables `settings`, because the
co-evolution sets it for each training, to a text that says what the user can do instead. The co-evolution
sets `model.name`, too, but a run file needs this key."""

RUNS = (f"{PROPOSER} run", f"{EXECUTOR} run")
"""The keys of `coevolve.json` with the settings of the trainings of the proposer and of the executor."""


@dataclass(frozen=True)
class Plan:
    """The settings of all trainings and evaluations of a co-evolution, made from the user's settings by the
    function `plan`. Its methods return the settings of single stages."""

    config: CoevolveConfig
    proposer: RunConfig
    """The settings of the training of the proposer, the model that writes questions. Each round replaces the
    run's name and folder, the model to start from, the seed and the task. `executor` has the same for the
    executor, the model that answers questions."""
    executor: RunConfig

    @property
    def folder(self) -> Path:
        return self.config.folder.absolute()

    def round_folder(self, number: int) -> Path:
        return self.folder / f"{ROUND}{number}"

    def proposer_run(self, number: int, model: str) -> RunConfig:
        """Returns the settings of the proposer's training in round `number`. The proposer is the model that
        writes questions; the training starts from `model`, a folder or hub id."""
        task = f"proposal:{self.round_folder(number) / PAYMENT_FILE}"
        prompts = self.proposer.max_steps * self.proposer.orchestrator.batch_size
        return self._run(self.config.proposer, PROPOSER, number, model, task, prompts)

    def executor_run(self, number: int, model: str, rows: int) -> RunConfig:
        """Returns the settings of the executor's training in round `number`. The executor is the model that
        answers questions; the training starts from `model`, a folder or hub id. `rows` is the number of
        questions to train on."""
        folder = self.round_folder(number)
        task = f"posed:{folder / (POSED_FILE if self.has_posed_files else ROWS)}"
        return self._run(self.config.executor, EXECUTOR, number, model, task, rows)

    def _run(
        self, side: SideConfig, name: str, number: int, model: str, task: str, prompts: int
    ) -> RunConfig:
        own = {
            "output_dir": str(self.round_folder(number)),
            "run": {"name": name},
            "model": {"name": model},
            "embedded": {"seed": 1000 * self.config.seed + number},
        }
        return _run_config(side, name, task, prompts, own)

    def payment(self, url: str | None) -> dict[str, Any]:
        """Returns the settings of a task `proposal:FILE`, as the JSON content of FILE. In this task, the
        proposer writes a question with an answer. `url` is the address of the service `POST /evaluate`, in
        which the executor answers the question, so that the proposal can be rewarded. With `url` None, all
        rewards are 0."""
        payment, answers = self.config.payment, self.config.answers
        return {
            **payment.model_dump(mode="json"),
            "k": answers.k,
            "max_turns": answers.max_turns,
            "sampling": self.sampling(),
            "equality": answers.equality,
            **({} if url is None else {"url": url}),
        }

    def posed(self, rows: Path) -> dict[str, Any]:
        """Returns the settings of a task `posed:FILE`, as the JSON content of FILE. The task asks the
        questions in the file `rows` (JSON lines) and offers the executor's tools."""
        answers = self.config.answers.model_dump(mode="json")
        return {
            "rows": str(rows),
            "tools": answers["tools"],
            "folder": str(Path.cwd()),
            "turns": answers["max_turns"],
            "equality": answers["equality"],
        }

    @property
    def has_posed_files(self) -> bool:
        """Whether the executor's tasks, whose ids are `posed:FILE`, need settings, so that FILE is a file of
        settings. If false, FILE is the file of questions itself; this is possible if the executor has no
        tools and answers are compared only by their canonical forms."""
        answers = self.config.answers
        return bool(answers.tools) or answers.equality != "forms"

    @property
    def held_out_rows(self) -> Path:
        return self.config.held_out.data.expanduser().absolute()

    def sampling(self) -> dict[str, Any]:
        """Returns a dict with the sampling settings of the executor's answers: `temperature` and
        `max_tokens`."""
        answers = self.config.answers
        return {"temperature": answers.temperature, "max_tokens": answers.max_tokens}

    def settings(self, run: RunConfig, task: str, temperature: float, **changes: Any) -> Settings:
        """Returns the settings for playing episodes of the task `task` outside a training. They are taken
        from the training `run`; only the task, the sampling temperature (`temperature`) and the settings
        `changes` of the taskset (the table that lists tasks) are replaced."""
        (source,) = run.orchestrator.train.source
        env: Any = source.env
        taskset = env.taskset.model_copy(update={"tasks": [task], "weights": {}, **changes})
        sampling = run.orchestrator.train.sampling
        return Settings(
            [env.model_copy(update={"taskset": taskset})],
            temperature=temperature,
            max_tokens=sampling.max_completion_tokens,
            context=run.seq_len,
            renderer=run.orchestrator.renderer,
            compute=run.embedded,
            deterministic=run.embedded.deterministic,
        )

    def held_out(self, number: int, model: str) -> Evaluation:
        """Returns the evaluation (an object that plays and records episodes) of the executor `model` on the
        held-out questions after round `number`."""
        held_out = self.config.held_out
        named = self.round_folder(number) / HELD_OUT_FILE
        task = f"posed:{named if self.has_posed_files else self.held_out_rows}"
        settings = self.settings(self.executor, task, held_out.temperature)
        folder = self.round_folder(number) / HELD_OUT
        seed = f"held out {self.config.seed} {number}"
        return Evaluation(f"round{number}", model, settings, folder, seed)

    def check(self) -> None:
        """Checks that the held-out questions, the executor's tools and the packages that compare answers can
        be used. Raises MissingError or ConfigError otherwise."""
        check_equality(self.config.answers.equality)
        read_rows(self.held_out_rows)
        self.tools  # noqa: B018 (loads them)

    @functools.cached_property
    def tools(self) -> ToolSet:
        """The executor's tools. They are loaded once, at the first use. Raises MissingError or ConfigError if
        a tool cannot be used."""
        specs = self.config.answers.tools
        return tool_set((tool for spec in specs for tool in load(spec)), "answers.tools")

    def claim(self) -> None:
        """Writes `coevolve.json`, the settings that the content of the co-evolution's folder depends on.
        Raises UsageError if the folder has other content, belongs to a co-evolution with other settings (only
        the number of rounds may differ), or cannot be written. So two co-evolutions never mix in one
        folder."""
        file = self.folder / FILE
        identity = json.loads(json.dumps(self._identity()))
        try:
            if file.is_file():
                before = json.loads(file.read_bytes())
                if not isinstance(before, dict):
                    raise ValueError("not an object")
                for name in RUNS:  # older versions recorded it, although it has no effect
                    before.get(name, {}).get("embedded", {}).pop("seed", None)
                self._compare(before, identity)
            elif self.folder.is_dir() and any(p.name != ".lock" for p in self.folder.iterdir()):
                raise UsageError(
                    "has something else in it", where=str(self.folder), remedy="give another --name"
                )
            paths.write_whole(file, f"{json.dumps(identity, indent=1)}\n".encode())
        except ValueError:
            raise UsageError(
                "is not a JSON object", where=str(file), remedy="give another --name"
            ) from None
        except OSError as error:
            raise UsageError(
                f"cannot be written: {error.strerror}",
                where=str(self.folder),
                remedy="give another --output-dir",
            ) from None

    def _compare(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        for key in {**before, **now}:
            if before.get(key) != now.get(key):
                remedy = "set it as it was, or give another --name"
                if key == "answers" and "equality" not in before.get(key, {}):
                    remedy += ' (it was begun with `equality = "forms"`)'
                raise UsageError(
                    f"the co-evolution in this folder was begun with another `{key}`",
                    where=str(self.folder),
                    remedy=remedy,
                )

    def _identity(self) -> dict[str, Any]:
        config = self.config.model_dump(mode="json", exclude={"rounds", "output_dir", "name"})
        # Folders that are older than these keys stay valid.
        if not config["answers"]["tools"]:
            del config["answers"]["tools"]
        if config["answers"]["equality"] == "forms":
            del config["answers"]["equality"]
        if config["generation"]["rows"] is None:
            del config["generation"]["rows"]
        runs = (self.proposer, self.executor)
        trainings = {n: run.model_dump(mode="json") for n, run in zip(RUNS, runs, strict=True)}
        for training in trainings.values():
            training["embedded"].pop("seed")
            for key in ("output_dir", "run", "resume"):
                training.pop(key)
        return {"v": 1, **config, **trainings}


def plan(config: CoevolveConfig) -> Plan:
    """Returns the settings of all trainings and evaluations of a co-evolution. Raises ConfigError or
    MissingError if a run file cannot be used."""
    sides = {PROPOSER: config.proposer, EXECUTOR: config.executor}
    proposer, executor = (
        _run_config(side, name, "posed:later", 1, {"run": {"name": name}})
        for name, side in sides.items()
    )
    return Plan(config, proposer, executor)


def _run_config(
    side: SideConfig, name: str, task: str, prompts: int, own: dict[str, Any]
) -> RunConfig:
    merged = overrides.read_files([f"@{path}" for path in side.run_files])
    overrides.refuse(merged.data, _SET_BY_COEVOLUTION, "the co-evolution", merged.place)
    set_here = {**_SET_BY_COEVOLUTION, "model.name": f"set `{name}.model`"}
    overrides.refuse(side.settings, set_here, "the co-evolution", f"{name}.settings.{{}}".format)
    overrides.put(merged, side.settings, f"{name}.settings")
    taskset = single_taskset(merged, f"the training of the {name}")
    taskset |= {"tasks": [task], "examples_per_task": prompts}
    taskset.pop("weights", None)
    overrides.put(merged, {"model": {"name": expanded(side.model)}}, f"{name}.model")
    overrides.put(merged, own, name)
    run = overrides.build(RunConfig, merged).with_checkout()
    (source,) = run.orchestrator.train.source
    if not isinstance(source.env, ResearchEnvConfig):
        raise ConfigError("needs an environment of air", where=f"{name}.run_files")
    return run


def expanded(model: str) -> str:
    """Returns a model's folder or hub id, `model`, with a leading `~` replaced by the path of the home
    folder."""
    return str(Path(model).expanduser()) if model.startswith("~") else model
