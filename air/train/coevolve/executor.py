"""A frozen executor answers questions, each k times, as it would in an episode of its training: with its
tools, if it has any. They are loaded once, so all answers share an index or a bound on calls. Only calls that
a tool carried out count as calls, and only the reply that ended an episode has its answer."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import verifiers.v1 as vf

from air.aio import together
from air.env.chat.harness import PROMPT_TOO_LONG
from air.env.config import ResearchEnvConfig
from air.errors import InfrastructureError
from air.rewards.proposals.reading import last_boxed
from air.tools import ToolSet
from air.train.config.run_config import SourceConfig
from air.train.evaluation.local_model import LocalModel, loaded
from air.train.evaluation.play import endpoint
from air.train.evaluation.settings import Settings
from air.train.loop.rollout import Rollout, play, seeded, serving
from air.worlds.proposals.posed import LENT
from air.worlds.proposals.scorer import Answered

AT_ONCE = 64
"""The largest number of episodes of one call that play at the same time."""

KEY_ENV = "OPENAI_API_KEY"
"""The environment variable with the API key of an endpoint."""


class Executor:
    """A model that answers questions, with `tools` if there are any. `env` has the settings of its episodes.
    The same question, seed and settings get the same answers, apart from rounding."""

    def __init__(
        self,
        model: LocalModel,
        env: ResearchEnvConfig,
        seed: int = 0,
        tools: ToolSet | None = None,
    ) -> None:
        self._model, self._env, self._seed = model, env, seed
        self._tools = tools or ToolSet(())

    async def answers(
        self, questions: Sequence[str], k: int, max_turns: int | None, sampling: Mapping[str, Any]
    ) -> list[Answered]:
        """Returns k answers to each question, in order. `max_turns` None: 4 turns with tools, else 1. Raises
        InfrastructureError if an episode failed twice."""
        ctx = self._model.ctx
        settings = ctx.sampling.model_copy(update=dict(sampling))
        ctx = replace(ctx, sampling=settings)
        with tempfile.TemporaryDirectory(prefix="air-answers-") as folder:
            path = Path(folder) / "questions.jsonl"
            rows = ({"question": question, "answer": ""} for question in questions)
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            env = self._model.settle(self._environment(path, len(questions), max_turns))
            with self._lending():
                rollouts = await self._played(env, ctx, questions, k)
        each = [rollouts[start : start + k] for start in range(0, len(rollouts), k)]
        return [_answered(of_question) for of_question in each]

    async def _played(
        self, env: ResearchEnvConfig, ctx: vf.ModelContext, questions: Sequence[str], k: int
    ) -> list[Rollout]:
        """Plays k episodes of each question, in order. One that failed is played once more."""
        config = SourceConfig.model_construct(name="answers", ratio=1.0, group_size=1, env=env)
        async with serving([config], 1) as (source,):

            async def one(number: int, sample: int) -> Rollout:
                name = hashlib.sha256(questions[number].encode("utf-8", "replace")).hexdigest()
                own = seeded(ctx, f"answers {self._seed} {name} {sample}")
                return await play(source, source.tasks[number], own)

            work = [one(n, sample) for n in range(len(questions)) for sample in range(k)]
            rollouts = await together(work, AT_ONCE)
            # Once more: an outage for a moment must not be charged to whoever wrote the question.
            failed = [number for number, each in enumerate(rollouts) if _has_failed(each)]
            again = [one(*divmod(number, k)) for number in failed]
            for number, rollout in zip(failed, await together(again, AT_ONCE), strict=True):
                rollouts[number] = rollout
        return rollouts

    @contextmanager
    def _lending(self) -> Iterator[None]:
        """Context manager: the tools are those of all questions that are loaded in it."""
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


@asynccontextmanager
async def answering(
    model: str,
    settings: Settings,
    seed: int,
    *,
    name: str = "",
    tools: ToolSet | None = None,
) -> AsyncIterator[Executor]:
    """Async context manager: an executor that answers with `settings` and `tools`. `model` is a folder or a
    hub id, which is loaded, or the URL of an endpoint that calls its model `name`."""
    async with AsyncExitStack() as stack:
        if name:
            ctx = endpoint(
                model,
                name,
                api_key_var=KEY_ENV,
                temperature=settings.temperature,
                max_tokens=settings.max_tokens,
            )
            answers = LocalModel(ctx, lambda env: env, f"model: {name} at {model}")
        else:
            answers = await stack.enter_async_context(loaded(model, settings))
        yield Executor(answers, settings.envs[0], seed, tools)


def _answered(rollouts: Sequence[Rollout]) -> Answered:
    """Returns the answers to one question. A question that leaves no room for a reply has none: whoever wrote
    it is to blame, not the model."""
    for rollout in rollouts:
        if _has_failed(rollout):
            raise InfrastructureError(f"an episode of the executor failed: {rollout.error}")
    calls = [rollout.metric("tool_calls") or 0.0 for rollout in rollouts]
    return Answered([_answer(rollout) for rollout in rollouts], sum(calls) / len(calls))


def _has_failed(rollout: Rollout) -> bool:
    """Whether an episode failed for another reason than a question that leaves no room for a reply."""
    return not rollout.ok and PROMPT_TOO_LONG not in rollout.error


def _answer(rollout: Rollout) -> str | None:
    """Returns the answer that an episode ended with; None if it ended without one, such as after a call."""
    return last_boxed(last_reply(rollout.trace)) if rollout.metric("answered") else None


def last_reply(trace: vf.Trace[Any, Any, Any] | None) -> str:
    """Returns the text of an episode's last reply; empty if there is none: the question left no room."""
    messages = trace.branches[-1].messages if trace is not None and trace.branches else []
    texts = [str(m.content or "") for m in messages if m.role == "assistant"]
    return texts[-1] if texts else ""
