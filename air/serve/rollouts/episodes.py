"""Plays the episodes of one request to `POST /rollouts`, in the same environment that training and evaluation
use."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from typing import Any

from air.aio import run_concurrently
from air.env.config import ResearchEnvConfig
from air.env.taskset import AirTask
from air.errors import ConfigError, boundary
from air.serve.rollouts.messages import EpisodeResult, RolloutsRequest, StopReason
from air.serve.rollouts.settings import RolloutsConfig
from air.train.config.run_config import SourceConfig
from air.train.evaluation.play import endpoint
from air.train.loop.rollout import Rollout, play, seeded, serving

KEY_ENV = "AIR_ROLLOUTS_KEY"
"""The name of the environment variable with the API key that is sent to model servers. Each request chooses
its model server, so anybody who may send requests can obtain this key."""
_RUNTIMES = {"docker": "docker", "process": "subprocess"}
_AGENTGYM = "agentgym:"
_MODEL_ERRORS = ("InferenceError", "ModelError", "ProviderError", "OverlongPromptError")
_CAUSE = re.compile(r"^(?:HarnessError: harness '[^']*': )+")
"""Matches the words that `verifiers`, the library that runs the episodes, puts before the text of an error
that it does not know, such as air's InferenceError. The error's type stands directly after these words. It is
searched only there, because later parts of the text may quote the environment's server."""
_REASONS: dict[str, StopReason] = {
    "turns": "max_round",
    "context": "context",
    "length": "context",
    "agent_timeout": "timeout",
}
"""Maps air's reasons for the end of an episode to the values of `stop_reason` in the response. All other
reasons, such as `submit`, become `done`."""


async def rollouts(
    body: RolloutsRequest, config: RolloutsConfig, episode_limit: asyncio.Semaphore
) -> list[EpisodeResult]:
    """Plays all episodes of a request. Returns their results in the order of `body.ids`, with the `n` results
    of each id together. The semaphore `episode_limit` limits how many episodes of all requests run at the
    same time.

    Raises UsageError if the task does not exist, or does not work with the action format.
    """
    source_config = SourceConfig.model_construct(
        name="rollouts", ratio=1.0, group_size=1, env=_environment(body, config)
    )
    ctx = endpoint(
        body.base_url,
        body.model,
        api_key_var=KEY_ENV,
        temperature=body.temperature,
        max_tokens=body.max_tokens,
        top_p=body.top_p,
    )
    async with serving([source_config], 1) as (source,):
        tasks = _tasks(body, [task for task in source.tasks if isinstance(task, AirTask)])

        async def one(place: int, task: AirTask, sample: int) -> EpisodeResult:
            own = seeded(ctx, f"{body.seed} {place} {sample}")
            async with episode_limit:
                rollout = await play(source, task, own)
            return _result(body.ids[place], sample, rollout)

        return await run_concurrently(
            [
                one(place, task, sample)
                for place, task in enumerate(tasks)
                for sample in range(body.n)
            ]
        )


def _environment(body: RolloutsRequest, config: RolloutsConfig) -> ResearchEnvConfig:
    settings = {
        "taskset": {
            "id": "air",
            "tasks": _names(body),
            "task_roots": list(config.task_roots),
            "mlgym_root": config.mlgym_root,
        },
        "agent": {
            "harness": {"id": "air", "format": _format(body)},
            "runtime": {"type": _RUNTIMES[config.provider]},
            "max_turns": body.max_round,
            "timeout": {"rollout": body.timeout},
        },
        "max_boxes": config.max_episodes,
        "max_failures": 0,  # failing episodes of this request say nothing about the next request
    }
    with boundary(ConfigError, "env", ValueError):
        return ResearchEnvConfig.model_validate(settings)


def _format(body: RolloutsRequest) -> str | None:
    """Returns the name of the action format (the syntax of the model's actions) that the request sets; None
    for the task's own format. For an AgentGym environment, `react` also means None, because some environments
    (textcraft and babyai) have a stricter form of `react` as their own format."""
    agentgyms = body.env.startswith(_AGENTGYM) and body.action_format == "react"
    return None if agentgyms else body.action_format


def _names(body: RolloutsRequest) -> list[str]:
    """Returns the ids of the tasks that must be loaded for a request. The tasks of an AgentGym environment
    are numbered: for it, these are one id for each different number in `ids`, in order. Otherwise, the only
    id is `body.env`."""
    if not body.env.startswith(_AGENTGYM):
        return [body.env]
    return [_agentgym(body.env, number) for number in dict.fromkeys(body.ids)]


def _agentgym(env: str, number: int) -> str:
    name, at, url = env.removeprefix(_AGENTGYM).partition("@")
    if ":" in name:
        raise ConfigError(
            "the ids of tasks belong into `ids`", where=env, remedy=f"write agentgym:NAME{at}URL"
        )
    return f"{_AGENTGYM}{name}:{number}{at}{url}"


def _tasks(body: RolloutsRequest, loaded: Sequence[AirTask]) -> list[AirTask]:
    """Returns one task for each entry of the request's `ids`. For an AgentGym environment, an entry is the
    number of a task; otherwise, it is the seed for the one task. `loaded` are the tasks with the ids that
    `_names` returns."""
    if body.env.startswith(_AGENTGYM):
        by_id = {task.data.task_id: task for task in loaded}
        return [by_id[_agentgym(body.env, number)] for number in body.ids]
    return [_with_seed(loaded[0], number) for number in body.ids]


def _with_seed(task: AirTask, seed: int) -> AirTask:
    data = task.data.model_copy(update={"seed": seed, "id": f"{task.data.task_id}/{seed}"})
    copy = type(task)(data, task.config)
    copy.spec = task.spec
    return copy


def _result(number: int, sample: int, rollout: Rollout) -> EpisodeResult:
    info = rollout.info
    reason = stop_reason(rollout)
    score = raw = None
    success = None
    if rollout.ok:
        score, raw, success = _scores(rollout)
    return EpisodeResult(
        id=number,
        sample=sample,
        score=score,
        raw_score=raw,
        success=success,
        done=reason == "done",
        rounds=int(rollout.metric("turns") or 0),
        stop_reason=reason,
        error=rollout.error or None,
        conversation=_conversation(rollout),
        rewards=list(info.get("rewards", info.get("deltas", []))) if rollout.ok else [],
    )


def stop_reason(rollout: Rollout) -> StopReason:
    """Returns the field `stop_reason` of the response: why an episode ended. For a failed episode, it is
    `model_error` if the model's server failed, and `env_error` if something else failed."""
    if rollout.ok:
        return _REASONS.get(str(rollout.info.get("why_ended")), "done")
    kind = _CAUSE.sub("", rollout.error).partition(":")[0]
    return "model_error" if kind in _MODEL_ERRORS else "env_error"


def _scores(rollout: Rollout) -> tuple[float, float | None, bool]:
    """Returns the fields `score`, `raw_score` and `success` of `EpisodeResult` for an episode that did not
    fail. If the task itself reports whether the episode succeeded, this becomes `success`. Otherwise, the
    episode is a success if its score is at least 1."""
    info = rollout.info
    facts = info.get("facts")
    if facts is None:  # a research task: its best normalised score, 1 of which is the target
        best = max((phi for phi in info["phis"] if phi is not None), default=0.0)
        scored = [score for score in info["scores"] if score is not None]
        return best, (scored[-1] if scored else None), best >= 1
    reward = rollout.terms["world"]
    score = facts.get("best_score", reward)
    return score, facts.get("raw_score", reward), facts.get("success", score) >= 1


def _conversation(rollout: Rollout) -> list[dict[str, Any]]:
    """Returns the chat messages of an episode in the form of AgentGym's trajectories: a list of dicts with
    the keys `from`, `value` and `loss`."""
    if rollout.trace is None or not rollout.trace.branches:
        return []
    return [_message(node.message, node.sampled) for node in rollout.trace.branches[-1].nodes]


def _message(message: Any, sampled: bool) -> dict[str, Any]:
    """Converts one chat message to the form of AgentGym's trajectories, a dict with the keys `from`, `value`
    (the text) and `loss`. `sampled` says whether the model wrote the message in this episode."""
    if message.role == "assistant":
        return {"from": "gpt", "loss": sampled, "value": _reply(message)}
    by = "human" if message.role in ("user", "tool") else message.role
    return {"from": by, "loss": None, "value": str(message.content or "")}


def _reply(message: Any) -> str:
    """Returns a reply of the model as one text. If the model's server returned reasoning or tool calls in
    separate fields, they are written into the text in the syntax of Qwen's models."""
    thought = (
        f"<think>\n{message.reasoning_content}\n</think>\n\n" if message.reasoning_content else ""
    )
    calls = [
        f'<tool_call>\n{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}\n</tool_call>'
        for call in message.tool_calls or ()
    ]
    return thought + "\n".join(filter(None, [message.content, *calls]))
