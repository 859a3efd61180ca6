"""The executor of a co-evolution: a model that answers each question k times. This module does not train the
model.

Each answer comes from an episode (one attempt at the question) like those of the executor's training, with
the same tools. The tools are loaded once, so that all episodes share what a tool keeps, such as a search
index or a limit on simultaneous calls. The answer is read from the last reply of the episode. Only tool calls
that a tool carried out are counted.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import verifiers.v1 as vf

from air.aio import run_concurrently
from air.env.chat.harness import PROMPT_TOO_LONG
from air.env.config import ResearchEnvConfig
from air.env.environment import ResearchEnv
from air.errors import InfrastructureError, UserCodeError
from air.rewards.proposals.reading import last_boxed
from air.tools import ToolSet
from air.train.config.run_config import SourceConfig
from air.train.evaluation.local_model import SampledModel, loaded
from air.train.evaluation.play import endpoint
from air.train.evaluation.settings import Settings
from air.train.loop.rollout import Rollout, Source, play, seeded, serving
from air.worlds.proposals.posed import LENT
from air.worlds.proposals.scorer import Answered

AT_ONCE = 64
"""The largest number of concurrent episodes in one call of `Executor.answers`."""

KEY_ENV = "OPENAI_API_KEY"
"""The environment variable that holds the API key for the executor's model, if this model is on a server."""


class Answerer(Protocol):
    """An object with a method `answers`, which answers questions: an `Executor` or a
    `RememberingExecutor`."""

    async def answers(
        self, questions: Sequence[str], k: int, max_turns: int | None, sampling: Mapping[str, Any]
    ) -> list[Answered]: ...


class Executor:
    """Lets a model (the executor of a co-evolution, which this object does not train) answer questions, with
    the tools in `tools` if there are any. Use the function `open_executor` to create an executor. `env` has
    the settings of the environment in which the episodes are played. `seed` is the seed of sampling: the
    answers to the same question with the same seed and settings are equal, apart from effects of rounding."""

    def __init__(
        self,
        model: SampledModel,
        env: ResearchEnvConfig,
        seed: int = 0,
        tools: ToolSet | None = None,
    ) -> None:
        self._model, self._env, self._seed = model, env, seed
        self._tools = tools or ToolSet(())
        self._user_error = ""
        """The message of the UserCodeError that has stopped this executor. Empty while the executor works."""

    async def answers(
        self, questions: Sequence[str], k: int, max_turns: int | None, sampling: Mapping[str, Any]
    ) -> list[Answered]:
        """Returns one `Answered` object, with k answers, for each question, in the order of `questions`.

        `max_turns` limits the number of turns in an episode; None: 4 turns if the executor has tools, else 1.
        `sampling` has sampling settings, such as `temperature`, that replace the model's. An episode that
        ends with an infrastructure error is played a second time; after a second such error, raises
        InfrastructureError. If a tool of the user hangs, raises UserCodeError, in this call and in all later
        ones.
        """
        if self._user_error:
            raise UserCodeError(self._user_error)
        ctx = self._model.ctx
        settings = ctx.sampling.model_copy(update=dict(sampling))
        ctx = replace(ctx, sampling=settings)
        with tempfile.TemporaryDirectory(prefix="air-answers-") as folder:
            path = Path(folder) / "questions.jsonl"
            rows = ({"question": question, "answer": ""} for question in questions)
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            env = self._model.fill_in_settings(self._environment(path, len(questions), max_turns))
            with self._shared_tools():
                rollouts = await self._play(env, ctx, questions, k)
        each = [rollouts[start : start + k] for start in range(0, len(rollouts), k)]
        return [_answered(of_question) for of_question in each]

    async def _play(
        self, env: ResearchEnvConfig, ctx: vf.ModelContext, questions: Sequence[str], k: int
    ) -> list[Rollout]:
        """Plays k episodes for each question, and returns the recorded episodes (`Rollout`), k for each
        question, in the order of the questions. Plays an episode with an infrastructure error once more,
        unless the question was too long for the model's context."""
        config = SourceConfig.model_construct(name="answers", ratio=1.0, group_size=1, env=env)
        async with serving([config], 1) as (source,):

            async def one(number: int, sample: int) -> Rollout:
                name = hashlib.sha256(questions[number].encode("utf-8", "replace")).hexdigest()
                own = seeded(ctx, f"answers {self._seed} {name} {sample}")
                return await play(source, source.tasks[number], own)

            work = [one(n, sample) for n in range(len(questions)) for sample in range(k)]
            rollouts = await run_concurrently(work, AT_ONCE)
            await self._check_tools(source)
            # Once more: an outage for a moment must not be charged to whoever wrote the question.
            failed = [number for number, each in enumerate(rollouts) if _has_failed(each)]
            again = [one(*divmod(number, k)) for number in failed]
            for number, rollout in zip(failed, await run_concurrently(again, AT_ONCE), strict=True):
                rollouts[number] = rollout
            await self._check_tools(source)
        return rollouts

    async def _check_tools(self, source: Source) -> None:
        """Raises UserCodeError if code of the user, such as a tool that hangs, has failed in an episode of
        `source`, the environment with the questions. All later calls of `answers` then raise the same
        error."""
        assert isinstance(source.env, ResearchEnv)
        try:
            await source.env.check_breaker()
        except InfrastructureError as error:
            # `max_failures` is 0, so nothing but such code opens the breaker.
            self._user_error = str(error)
            raise UserCodeError(self._user_error) from None

    @contextmanager
    def _shared_tools(self) -> Iterator[None]:
        """Context manager: tasks that are loaded inside the block use the executor's tools, instead of
        loading tools of their own."""
        token = LENT.set(self._tools)
        try:
            yield
        finally:
            LENT.reset(token)

    def _environment(self, path: Path, count: int, max_turns: int | None) -> ResearchEnvConfig:
        taskset = self._env.taskset.model_copy(
            update={
                "tasks": [f"posed:{path}"],
                "weights": {},
                "examples_per_task": count,
                "first_seed": 0,
                "purpose": "training",
            }
        )
        agent = self._env.agent.model_copy(update={"max_turns": max_turns})
        return self._env.model_copy(
            update={"taskset": taskset, "agent": agent, "record_dir": None, "max_failures": 0}
        )


class RememberingExecutor:
    """Wraps an `Executor` and caches its answers: a question that is asked again with the same settings gets
    the cached answers, because a new call would give the same ones. Use it only for an `Executor` without
    tools whose model follows the seeds in its requests."""

    def __init__(self, executor: Answerer) -> None:
        self._executor = executor
        self._answers: dict[tuple[str, int, int | None, str], Answered] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def answers(
        self, questions: Sequence[str], k: int, max_turns: int | None, sampling: Mapping[str, Any]
    ) -> list[Answered]:
        """Returns one `Answered` object, with k answers, for each question, in the order of `questions`. A
        question that was asked before with the same k, `max_turns` and `sampling` gets the cached answers.
        `Executor.answers` answers the others; its errors are raised here, too, and are not cached."""
        settings = (k, max_turns, json.dumps(dict(sampling), sort_keys=True))

        async def one(question: str) -> Answered:
            # Equal questions in requests at the same time wait for the first of them.
            async with self._locks[question]:
                key = (question, *settings)
                if key not in self._answers:
                    (found,) = await self._executor.answers([question], k, max_turns, sampling)
                    self._answers[key] = replace(found, replies=())  # they are long
                return self._answers[key]

        return await run_concurrently([one(question) for question in questions], AT_ONCE)


@asynccontextmanager
async def open_executor(
    model: str,
    settings: Settings,
    seed: int,
    *,
    name: str = "",
    tools: ToolSet | None = None,
) -> AsyncIterator[Executor]:
    """Async context manager: yields an `Executor`, which lets a model answer questions with the settings
    `settings`, the seed `seed` of sampling and the tools `tools` (None: no tools). Without `name`, `model` is
    a folder or hub id, and the model is loaded. With `name`, `model` is the URL of an endpoint, and `name` is
    the model's name there."""
    async with AsyncExitStack() as stack:
        if name:
            ctx = endpoint(
                model,
                name,
                api_key_var=KEY_ENV,
                temperature=settings.temperature,
                max_tokens=settings.max_tokens,
            )
            answers = SampledModel(ctx, lambda env: env, f"model: {name} at {model}")
        else:
            answers = await stack.enter_async_context(loaded(model, settings))
        yield Executor(answers, settings.envs[0], seed, tools)


def _answered(rollouts: Sequence[Rollout]) -> Answered:
    """Returns the answers to one question (an `Answered` object), one for each of the episodes in `rollouts`,
    the mean number of tool calls, and the last replies. The answer of an episode is None if the question was
    too long for the model's context; that is the question's fault, so it is no error. Raises
    InfrastructureError if an episode ended with any other error."""
    for rollout in rollouts:
        if _has_failed(rollout):
            raise InfrastructureError(f"an episode of the executor failed: {rollout.error}")
    calls = [rollout.metric("tool_calls") or 0.0 for rollout in rollouts]
    return Answered(
        [_answer(rollout) for rollout in rollouts],
        sum(calls) / len(calls),
        [last_reply(rollout.trace) for rollout in rollouts],
    )


def _has_failed(rollout: Rollout) -> bool:
    """Returns whether an episode ended with an error. It is not counted as an error if the question was too
    long to leave room for a reply in the model's context."""
    return not rollout.ok and PROMPT_TOO_LONG not in rollout.error


def _answer(rollout: Rollout) -> str | None:
    """Returns the answer in the last reply of an episode: the content of its last `\\boxed{…}`. Returns None
    if there is none, or if the episode ended without an answer, for example after a tool call."""
    return last_boxed(last_reply(rollout.trace)) if rollout.metric("answered") else None


def last_reply(trace: vf.Trace[Any, Any, Any] | None) -> str:
    """Returns the text of the model's last reply in the recorded episode `trace`. The text is empty if there
    is no reply, for example because the prompt was too long."""
    messages = trace.branches[-1].messages if trace is not None and trace.branches else []
    texts = [str(m.content or "") for m in messages if m.role == "assistant"]
    return texts[-1] if texts else ""
