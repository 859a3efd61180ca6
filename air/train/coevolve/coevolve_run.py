"""Runs the rounds of a co-evolution, and skips the stages that an earlier process has finished.

In each round, the proposer (a model) is trained to write questions, and then writes proposals. A proposal is
a question with the proposer's own answer. The executor (another model) answers the proposed questions, is
trained on a selection of these questions, and answers held-out questions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from air import json_lines, paths
from air.errors import InfrastructureError, UsageError
from air.rewards.proposals.novelty import words
from air.rewards.proposals.reading import Malformed, read
from air.train.coevolve import report
from air.train.coevolve.evaluate_service import serving_evaluations
from air.train.coevolve.executor import (
    Answerer,
    Executor,
    RememberingExecutor,
    last_reply,
    open_executor,
)
from air.train.coevolve.files import (
    ANSWERED,
    HELD_OUT_FILE,
    PAYMENT_FILE,
    POSED_FILE,
    PROPOSALS,
    ROWS,
    SAMPLING_FILE,
    read_answered,
    read_proposals,
)
from air.train.coevolve.plan import Plan
from air.train.coevolve.proposal_selection import select_rows
from air.train.coevolve.sides import Side, Training, expanded, result
from air.train.devices.device import give_back_memory
from air.train.evaluation.local_model import loaded
from air.train.evaluation.play import evaluate
from air.train.evaluation.settings import Settings
from air.train.loop import run_folder
from air.train.matrix.training import OpenTrainingLog, train
from air.train.prime_rl.training import PrimeTraining
from air.worlds.proposals.comparison_threads import compare_in_thread
from air.worlds.proposals.posed import read_rows

BATCH = 64
"""The number of proposed questions that the executor gets in one call of `Executor.answers`."""
MOSTLY_MALFORMED = 0.9
"""The share of malformed proposals in a round from which on the user is warned."""
_SHOWN = 120
"""The maximum length, in characters, of a malformed proposal in the warning."""


class CoevolveRun:
    """Runs all stages of a co-evolution (training in rounds of a proposer, which writes questions, and an
    executor, which answers them) that are not finished. `say` prints a line for the user. `logged` returns a
    context manager that can direct the log lines of a training to a file in the training's folder (see
    `air.train.matrix.training.OpenTrainingLog`)."""

    def __init__(self, plan: Plan, say: Callable[[str], None], logged: OpenTrainingLog) -> None:
        self._plan, self._config, self._say, self._logged = plan, plan.config, say, logged

    async def run(self) -> None:
        """Runs all rounds, and writes the report after each round. Round 0 trains nothing: it measures both
        models.

        Raises the errors that `EmbeddedRun.run` or `PrimeTraining.run` raises for a training. Outside
        trainings, raises InfrastructureError if an episode ends with an infrastructure error, UserCodeError
        if a tool of the user hangs, and UsageError if the recorded episodes on held-out questions were played
        with other weights or settings. After SIGINT (Ctrl-C), raises CancelledError; the files of all
        finished stages are kept.
        """
        proposer, executor = map(
            expanded, (self._config.proposer.model, self._config.executor.model)
        )
        for number in range(self._config.rounds + 1):
            if number:
                proposer = await self._train_proposer(number, proposer, executor)
            await self._propose(number, proposer)
            await self._answer(number, executor)
            rows = await self._filter(number)
            if number:
                executor = await self._train_executor(number, executor, rows)
            await self._hold_out(number, executor)
            await compare_in_thread(partial(report.write, self._plan))

    def _place(self, number: int, stage: str) -> str:
        return f"[round {number}/{self._config.rounds}] {stage}"

    async def _train_proposer(self, number: int, model: str, executor: str) -> str:
        """Trains the proposer (the model that writes questions) in round `number`, and returns the folder of
        the trained model. Trains nothing if this training is finished already. The training starts from
        `model`. The model `executor`, which is not trained meanwhile, answers the questions, so that they can
        be rewarded. Returns `model` if the settings freeze the proposer."""
        if self._config.proposer.frozen:
            return model
        training = self._plan.proposer_run(number, model)
        if (done := result(training)) is not None:
            return str(done)
        async with AsyncExitStack() as stack:
            # If the executor's settings say `deterministic`, the training uses torch's deterministic
            # algorithms, too, whatever its own settings say: both run in this process.
            answers: Answerer = await stack.enter_async_context(self._executor(executor))
            if not self._config.answers.tools:  # what a tool returns may change from call to call
                answers = RememberingExecutor(answers)
            service = serving_evaluations(answers, self._config.answers.equality)
            url = await stack.enter_async_context(service)
            self._write(number, PAYMENT_FILE, [self._plan.payment(url)])
            return await self._train(training, self._place(number, "proposer"))

    async def _propose(self, number: int, model: str) -> None:
        """Samples proposals (questions with the proposer's own answers) from the model `model`, and writes
        them to `proposals.jsonl` in the folder of round `number`. Does nothing if this file exists. Raises
        InfrastructureError if an episode ends with an infrastructure error."""
        if (self._folder(number) / PROPOSALS).is_file():
            return
        count = self._config.generation.proposals
        self._say(f"{self._place(number, 'proposals')}: samples {count}")
        self._write(number, SAMPLING_FILE, [self._plan.payment(None)])
        task = f"proposal:{self._folder(number) / SAMPLING_FILE}"
        settings = self._plan.settings(
            self._plan.proposer,
            task,
            self._config.generation.temperature,
            examples_per_task=count,
            first_seed=number * count,
        )
        async with loaded(model, self._placed(settings, self._plan.proposer)) as served:
            (env,) = settings.envs
            rollouts = await evaluate(
                served.fill_in_settings(env),
                served.ctx,
                {task: count},
                seed=f"proposals {self._config.seed}",  # the prompts' seeds differ between rounds
            )
        failed = [rollout.error for rollout in rollouts if not rollout.ok]
        if failed:
            raise InfrastructureError(f"{len(failed)} episodes of the proposer failed: {failed[0]}")
        self._write(number, PROPOSALS, ({"text": last_reply(r.trace)} for r in rollouts))

    async def _answer(self, number: int, model: str) -> None:
        """Lets the executor (the model `model`) answer the proposed questions in `proposals.jsonl`, and
        writes the proposals with the executor's answers to `answered.jsonl`; both files are in the folder of
        round `number`. Asks equal questions only once. Does nothing if `answered.jsonl` exists."""
        if (self._folder(number) / ANSWERED).is_file():
            return
        longest = self._config.payment.longest
        lines = [_read(text, longest) for text in read_proposals(self._folder(number))]
        if warning := malformed_warning(lines):
            self._say(f"{self._place(number, 'warning')}: {warning}")
        questions = list(dict.fromkeys(x["question"] for x in lines if "malformed" not in x))
        self._say(f"{self._place(number, 'answers')}: {len(questions)} different questions")
        by_question = await self._answers_to(questions, model) if questions else {}
        self._write(
            number,
            ANSWERED,
            ({**line, **by_question.get(line.get("question", ""), {})} for line in lines),
        )

    async def _answers_to(self, questions: Sequence[str], model: str) -> dict[str, dict[str, Any]]:
        """Lets the executor (the model `model`) answer the different `questions`. Returns, by question, the
        keys that the lines of `answered.jsonl` have in addition: `answers` and `tool_calls`."""
        answers = self._config.answers
        by_question: dict[str, dict[str, Any]] = {}
        async with self._executor(model) as executor:
            for start in range(0, len(questions), BATCH):
                batch = questions[start : start + BATCH]
                found = await executor.answers(
                    batch, answers.k, answers.max_turns, self._plan.sampling()
                )
                for question, one in zip(batch, found, strict=True):
                    by_question[question] = {
                        "answers": list(one.answers),
                        "tool_calls": one.tool_calls,
                    }
        return by_question

    async def _filter(self, number: int) -> int:
        """Selects from `answered.jsonl` the proposals (questions) on which the executor is trained, by how
        far its answers to them agree. Writes them to `rows.jsonl`, and returns their number. Both files are
        in the folder of round `number`. If `rows.jsonl` exists, selects nothing, because a resumed training
        must find its earlier rows: a new selection could differ, since comparisons of answers have time
        limits."""
        file = self._folder(number) / ROWS
        if file.is_file():
            return sum(1 for _ in json_lines.read(file, complete=True))
        lines = read_answered(self._folder(number))
        rows, _ = read_rows(self._plan.held_out_rows)
        held_out = {words(row.question) for row in rows}
        generation, payment = self._config.generation, self._config.payment
        equality = self._config.answers.equality
        # In a thread, so that Ctrl-C waits for one comparison at most: those of hostile answers take minutes.
        chosen = await compare_in_thread(
            partial(select_rows, lines, generation, payment, held_out, equality)
        )
        self._say(f"{self._place(number, 'filter')}: keeps {len(chosen)} of {len(lines)}")
        self._write(number, ROWS, chosen)
        return len(chosen)

    async def _train_executor(self, number: int, model: str, rows: int) -> str:
        """Trains the executor (the model that answers questions) on the questions in `rows.jsonl` of round
        `number`, and returns the folder of the trained model. Trains nothing if this training is finished
        already. `rows` is the number of questions. The training starts from `model`. Returns `model` if there
        is no question, or if the settings freeze the executor."""
        if self._config.executor.frozen:
            return model
        if not rows:
            self._say(f"{self._place(number, 'executor')}: no question was kept; it stays as it is")
            return model
        training = self._plan.executor_run(number, model, rows)
        self._write_posed(number, POSED_FILE, self._folder(number) / ROWS)
        return await self._train(training, self._place(number, "executor"))

    async def _train(self, training: Training, title: str) -> str:
        """Runs a training, or continues it, by the engine of its settings. Returns the folder of the trained
        model. `title` says which training it is."""
        if isinstance(training, PrimeTraining):
            give_back_memory()  # of the models that have played, because prime-rl needs it
            return str(await training.run(lambda text: self._say(f"{title}: {text}")))
        return str(await train(training, title, self._say, self._logged))

    async def _hold_out(self, number: int, model: str) -> None:
        """Lets the executor (the model `model`) answer those held-out questions of round `number` whose
        episodes are not recorded yet, and records these episodes. Raises UsageError if the round's folder has
        episodes with other weights or settings, and InfrastructureError if an episode ends with an
        infrastructure error."""
        evaluation = self._plan.held_out(number, model)
        if not evaluation.fits():
            raise UsageError(
                "has episodes of other weights, or with other settings",
                where=str(evaluation.folder),
                remedy="remove this folder to play them anew",
            )
        self._write_posed(number, HELD_OUT_FILE, self._plan.held_out_rows)
        evaluation.open()
        missing = evaluation.missing(self._config.held_out.episodes)
        if not any(missing.values()):
            return
        self._say(f"{self._place(number, 'held-out questions')}: {sum(missing.values())} episodes")
        settings = self._placed(evaluation.settings, self._plan.executor)
        async with loaded(model, settings) as served:
            with run_folder.locked(evaluation.folder):
                rollouts = await evaluation.play(served.ctx, missing, served.fill_in_settings)
        if failed := [rollout.error for rollout in rollouts if not rollout.ok]:
            raise InfrastructureError(f"{len(failed)} episodes of the executor failed: {failed[0]}")

    def _executor(self, model: str) -> AbstractAsyncContextManager[Executor]:
        """Returns an async context manager that loads the model `model` (a folder or hub id) and yields an
        `Executor`, which lets this model answer questions."""
        temperature = self._config.answers.temperature
        settings = self._plan.settings(self._plan.executor, "posed:later", temperature)
        settings = self._placed(settings, self._plan.executor)
        return open_executor(model, settings, self._config.seed, tools=self._plan.tools)

    def _placed(self, settings: Settings, side: Side) -> Settings:
        """Returns a copy of `settings`, with which the model of `side` plays. In this copy, the model plays
        on the first GPU of `Plan.gpus` that no other process has leased."""
        chosen = self._plan.gpus(side)
        if chosen is None:
            return settings
        names = {"trainer_gpus": [gpu.uuid for gpu in chosen]}
        envs = [env.model_copy(update=names) for env in settings.envs]
        compute = settings.compute.model_copy(update={"device": "cuda"})
        return replace(settings, envs=envs, compute=compute)

    def _write_posed(self, number: int, name: str, rows: Path) -> None:
        """Writes the file `name` into the folder of round `number`: the settings of a task in which the
        executor answers the questions in the file `rows`. Writes nothing if the executor has no tools and
        answers are compared only by their canonical forms: such a task needs no settings, and its id
        `posed:FILE` names the file `rows` itself."""
        if self._plan.has_posed_files:
            self._write(number, name, [self._plan.posed(rows)])

    def _folder(self, number: int) -> Path:
        return self._plan.round_folder(number)

    def _write(self, number: int, name: str, lines: Iterable[Mapping[str, Any]]) -> None:
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        paths.write_whole(self._folder(number) / name, text.encode())


def _read(text: str, longest: int) -> dict[str, Any]:
    """Parses `text`, a reply of the proposer that should be a question with an answer. Returns a line of
    `answered.jsonl` as a dict, still without the executor's answers: `{"question", "proposed"}`, where
    `proposed` is the proposer's answer, or `{"malformed", "text"}` with the reason and the first 2000
    characters. A question with more than `longest` characters is malformed."""
    try:
        question = read(text, longest)
    except Malformed as error:
        return {"malformed": str(error), "text": text[:2000]}
    return {"question": question.text, "proposed": question.answer}


def malformed_warning(lines: Sequence[Mapping[str, Any]]) -> str | None:
    """Returns a warning, as one line, if at least the share `MOSTLY_MALFORMED` of the proposals in `lines` is
    malformed; else None. `lines` are those of `answered.jsonl`. The warning has the beginning of the first
    malformed proposal, with escapes in the place of unprintable characters, and a remedy."""
    malformed = [line for line in lines if "malformed" in line]
    if not malformed or len(malformed) < MOSTLY_MALFORMED * len(lines):
        return None
    text = malformed[0]["text"]
    shown = repr(text[:_SHOWN]) + ("…" if len(text) > _SHOWN else "")
    return (
        f"{len(malformed)} of {len(lines)} proposals are malformed, the first because "
        f"{malformed[0]['malformed']}: {shown} — train the proposer with `sft` on well-formed proposals "
        "first, or describe the form in `payment.instructions`, or, if proposals are cut off, increase the "
        "proposer's `max_completion_tokens`"
    )
