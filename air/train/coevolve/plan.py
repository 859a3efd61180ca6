"""Turns the settings of a co-evolution into the settings of its trainings and evaluations.

A co-evolution trains two models in rounds: a proposer, which writes questions, and an executor, which answers
them. This module also checks that the existing content of the co-evolution's folder was made with the same
settings. `air.train.coevolve.files` describes the folder.
"""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from air import paths
from air.errors import UsageError
from air.rewards.proposals.agreement import check_equality
from air.sandbox.pool.gpus import Gpu
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
    STAGE_FILES,
)
from air.train.coevolve.sides import (
    Side,
    Training,
    free_gpus,
    preferred_gpus,
    read_side,
    result,
)
from air.train.config.coevolve_config import CoevolveConfig
from air.train.evaluation.resumable_evaluation import Evaluation
from air.train.evaluation.settings import Settings
from air.train.loop import run_folder
from air.train.prime_rl.training import PrimeTraining
from air.worlds.proposals.posed import read_rows, tool_set

RUNS = (f"{PROPOSER} run", f"{EXECUTOR} run")
"""The keys of `coevolve.json` with the settings of the trainings of the proposer and of the executor."""


@dataclass(frozen=True)
class Plan:
    """The settings of all trainings and evaluations of a co-evolution, made from the user's settings by the
    function `plan`. Its methods return the settings of single stages."""

    config: CoevolveConfig
    proposer: Side
    """The proposer, the model that writes questions, with the settings of its trainings. Each round replaces
    the run's name and folder, the model to start from, the seed and the task. `executor` has the same for the
    executor, the model that answers questions."""
    executor: Side

    @property
    def folder(self) -> Path:
        return self.config.folder.absolute()

    def round_folder(self, number: int) -> Path:
        return self.folder / f"{ROUND}{number}"

    def proposer_run(self, number: int, model: str) -> Training:
        """Returns the settings of the proposer's training in round `number`. The proposer is the model that
        writes questions; the training starts from `model`, a folder or hub id."""
        task = f"proposal:{self.round_folder(number) / PAYMENT_FILE}"
        return self._training(self.proposer, number, model, task, self.proposer.episodes)

    def executor_run(self, number: int, model: str, rows: int) -> Training:
        """Returns the settings of the executor's training in round `number`. The executor is the model that
        answers questions; the training starts from `model`, a folder or hub id. `rows` is the number of
        questions to train on."""
        folder = self.round_folder(number)
        task = f"posed:{folder / (POSED_FILE if self.has_posed_files else ROWS)}"
        return self._training(self.executor, number, model, task, rows)

    def _training(self, side: Side, number: int, model: str, task: str, prompts: int) -> Training:
        seed = 1000 * self.config.seed + number
        return side.training(self.round_folder(number), model, task, prompts, seed)

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

    def settings(self, side: Side, task: str, temperature: float, **changes: Any) -> Settings:
        """Returns the settings for playing episodes of the task `task` outside a training. They are taken
        from the trainings of `side`; only the task, the sampling temperature (`temperature`) and the settings
        `changes` of the taskset (the table that lists tasks) are replaced."""
        run = side.played
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
        be used. If prime-rl must still train a model, also checks that it can, with tasks like those of a
        round. Raises MissingError or ConfigError otherwise. If all rounds are finished, checks only the
        packages that compare answers, since only the report remains to be written then."""
        check_equality(self.config.answers.equality)
        if self.is_finished():
            return
        read_rows(self.held_out_rows)
        self.tools  # noqa: B018 (loads them)
        if self.config.rounds:
            self._check_prime_rl()

    def is_finished(self) -> bool:
        """Returns whether the stages of all rounds are finished. The report may still be missing."""
        numbers = range(self.config.rounds + 1)
        return (
            all((self.round_folder(n) / x).is_file() for n in numbers for x in STAGE_FILES)
            and self._are_trained(self.proposer)
            and self._are_trained(self.executor)
            and not any(any(self._missing(number).values()) for number in numbers)
        )

    def _missing(self, number: int) -> dict[str, int]:
        # The model does not matter for the number of recorded episodes.
        return self.held_out(number, "").missing(self.config.held_out.episodes)

    def _are_trained(self, side: Side) -> bool:
        """Returns whether all trainings of `side` are finished. A round without rows has no training of the
        executor."""
        if side.config.frozen:
            return True
        for number in range(1, self.config.rounds + 1):
            rows = self.round_folder(number) / ROWS
            is_skipped = side is self.executor and rows.is_file() and not rows.stat().st_size
            if (
                not is_skipped
                and result(self._training(side, number, "", "posed:later", 1)) is None
            ):
                return False
        return True

    def _check_prime_rl(self) -> None:
        """Raises MissingError or ConfigError if prime-rl cannot run a remaining training of this
        co-evolution, or if it leaves no device to play on."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "task.json"
            tasks = {
                f"proposal:{file}": (self.proposer, self.payment(None)),
                f"posed:{file}": (self.executor, self.posed(self.held_out_rows)),
            }
            for task, (side, settings) in tasks.items():
                if side.engine != "prime-rl" or self._are_trained(side):
                    continue
                file.write_text(json.dumps(settings))
                training = side.training(self.folder, side.config.model, task, 1, 0)
                assert isinstance(training, PrimeTraining)
                training.check()
        for side in (self.proposer, self.executor):
            self.gpus(side)

    def gpus(self, side: Side) -> list[Gpu] | None:
        """Returns the GPUs on one of which this process plays with the model of `side`. None: the device in
        the side's settings. The executor plays during the proposer's training, so if prime-rl does this
        training, the executor gets the GPUs that it leaves (see `free_gpus`). The proposer plays only between
        trainings: it gets the same GPUs, and any if prime-rl leaves none. None also if no training of the
        proposer remains. Raises ConfigError if there is no GPU for the executor, or if the machine has fewer
        GPUs than prime-rl needs."""
        if not self.config.rounds or self._are_trained(self.proposer):
            return None
        training = self.proposer_run(0, self.proposer.config.model)
        return (preferred_gpus if side is self.proposer else free_gpus)(training, side)

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
            self.check_recorded()
            if not file.is_file() and run_folder.has_content(self.folder):
                raise UsageError(
                    "has something else in it", where=str(self.folder), remedy="give another --name"
                )
            paths.write_whole(file, f"{json.dumps(identity, indent=1)}\n".encode())
        except OSError as error:
            raise UsageError(
                f"cannot be written: {error.strerror}",
                where=str(self.folder),
                remedy="give another --output-dir",
            ) from None

    def check_recorded(self) -> None:
        """Raises UsageError if the co-evolution's folder has a `coevolve.json` with other settings (only the
        number of rounds may differ), or one that cannot be read."""
        file = self.folder / FILE
        if file.is_file():
            identity = json.loads(json.dumps(self._identity()))
            try:
                recorded = _recorded(file, identity)
            except OSError as error:
                raise UsageError(
                    f"cannot be read: {error.strerror}",
                    where=str(file),
                    remedy="correct its permissions",
                ) from None
            self._compare(recorded, identity)

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
        sides = (self.proposer, self.executor)
        for side in sides:
            # The engine is in the settings of the training; the device may change.
            del config[side.name]["engine"], config[side.name]["compute"]
        return {"v": 1, **config, **{n: s.identity() for n, s in zip(RUNS, sides, strict=True)}}


def _recorded(file: Path, identity: Mapping[str, Any]) -> dict[str, Any]:
    """Reads `file`, a `coevolve.json`, and returns the settings in it, without the seeds of trainings, which
    older versions recorded, although they have no effect. `identity` has the present settings. Raises
    UsageError if the file is not a JSON object, has another version, or if one of its values is not an
    object, although the same key of `identity` has one."""
    remedy = "restore the file, or give another --name"
    try:
        before = json.loads(file.read_bytes())
    except (ValueError, RecursionError):  # not JSON, not UTF-8, or nested too deeply
        before = None
    if not isinstance(before, dict):
        raise UsageError("is not a JSON object", where=str(file), remedy=remedy)
    if before.get("v") != identity["v"]:
        raise UsageError(f"must be {identity['v']}", where=f"{file}: v", remedy=remedy)
    for key, now in identity.items():
        if isinstance(now, dict):
            _check_object(before, key, f"{file}: {key}", remedy)
    for name in RUNS:
        training = before.get(name, {})
        _check_object(training, "embedded", f"{file}: {name}.embedded", remedy)
        training.get("embedded", {}).pop("seed", None)
    return before


def _check_object(data: Mapping[str, Any], key: str, where: str, remedy: str) -> None:
    if not isinstance(data.get(key, {}), dict):
        raise UsageError("must be a JSON object", where=where, remedy=remedy)


def plan(config: CoevolveConfig) -> Plan:
    """Returns the settings of all trainings and evaluations of a co-evolution. Raises ConfigError or
    MissingError if a run file cannot be used."""
    proposer, executor = config.proposer, config.executor
    return Plan(config, read_side(proposer, PROPOSER), read_side(executor, EXECUTOR))
