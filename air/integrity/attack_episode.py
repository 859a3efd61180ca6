"""Runs one episode of an attack (of an agent that tries to cheat) with a scripted model, and checks the
trajectory, which is air's record of the episode."""

from __future__ import annotations

import asyncio
import functools
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import verifiers.v1 as vf

from air.env.environment import ResearchEnv
from air.errors import ConfigError
from air.integrity.attack import DEFAULT, AttackEpisode, Setup
from air.rewards.delta import validate_that_counts
from air.testing import Script, ScriptedServer, replies, tool_calls
from air.train.model.tokenizer import SMALLEST_VOCAB, build_tokenizer
from air.trajectories import Trajectory, load


async def play(
    env: ResearchEnv, task_id: str, texts: Sequence[str], setup: Setup = DEFAULT
) -> AttackEpisode:
    """Runs one episode of the task `task_id` in the environment `env`, with the settings `setup`, and returns
    its result. Instead of a model, a script acts as the agent: it replies with `texts`, one in each turn, and
    repeats the last one until the episode ends."""
    task = next(task for task in env.taskset if task.data.task_id == task_id)
    script = replies(*texts) if setup.harness == "air" else tool_calls(*texts)
    with _model(script, setup) as client:
        ctx = vf.ModelContext(model="scripted", client=client)
        episode = await env.run_slot(env.slots(task)[0], ctx)
    trace = episode.traces[0] if episode.traces else None
    if trace is None:
        return AttackEpisode(None, f"no agent ran: {episode.errors}")
    assert env.config.record_dir is not None
    file = env.config.record_dir / f"{trace.info['air']['episode']}.jsonl"
    try:
        record = await asyncio.to_thread(load, file)
    except ConfigError as error:
        return AttackEpisode(float(trace.reward), "", fault=f"it cannot be read: {error}")
    as_written = setup.harness == "air" and not setup.sampled
    shown = tuple(step.shown for step in record.steps)
    errors = [*episode.errors, *trace.errors]
    if errors:
        return AttackEpisode(None, " ".join(str(errors[-1]).split())[:500], shown)
    return AttackEpisode(
        reward=float(trace.reward),
        error="",
        observations=shown,
        metrics=dict(trace.metrics),
        fault=_fault(record, trace, texts if as_written else None),
    )


@contextmanager
def _model(script: Script, setup: Setup) -> Iterator[vf.ClientConfig]:
    """Context manager that runs a server on which `script` acts as the model, and yields the settings of the
    client that requests replies from it."""
    key = "AIR_ATTACK_KEY"
    if not setup.sampled:
        with ScriptedServer(script) as server:
            yield vf.EvalClientConfig(base_url=server.url, api_key_var=key)
        return
    folder, tokenizer = _tokenizer()
    with ScriptedServer(script, tokenizer) as server:
        yield vf.TrainClientConfig.model_validate(
            {
                "base_url": server.url,
                "api_key_var": key,
                "renderer": {"name": "qwen3", "enable_thinking": False},
                "renderer_model_name": folder.name,
            }
        )


@functools.cache
def _tokenizer() -> tuple[tempfile.TemporaryDirectory[str], Any]:
    """Returns a small tokenizer, and the temporary folder that contains it, which lasts as long as this
    process."""
    tokenizer = build_tokenizer(["Try it."], SMALLEST_VOCAB, max_length=2**20)
    folder = tempfile.TemporaryDirectory(prefix="air-tokenizer-")
    tokenizer.save_pretrained(folder.name)
    return folder, tokenizer


def _counted(record: Trajectory) -> str:
    """Returns the digest of the artefact (result of the agent) that counts at the end of the recorded
    episode. Returns an empty string if there is none, or if it was unreadable."""
    assert record.start is not None
    counts, direction = record.start.counts, record.start.direction or "higher"
    at = validate_that_counts([one.score for one in record.validations], counts, direction)
    return "" if at is None else record.validations[at].artefact


def _fault(record: Trajectory, trace: vf.Trace, texts: Sequence[str] | None) -> str:
    """Checks the recorded trajectory of an episode that did not fail, against `verifiers`' record `trace` and
    the model's replies `texts`. Returns a message about an inconsistency, or an empty string.

    If `texts` is None, the replies are not compared: a program in the box was the agent and wrote a part of
    the conversation, or the replies were sampled, so that the text is what could be read from tokens.
    """
    if record.end is None or record.end.reward != trace.reward:
        return "its end does not have the episode's reward"
    if "validates" in trace.metrics:  # worlds have none
        if len(record.validations) != trace.metrics["validates"]:
            return "it does not have the episode's validates"
        if record.end.test is None or record.end.test.artefact != _counted(record):
            return "the test split graded another artefact than the validated one that counts"
    if texts is None:
        return ""
    replied = [step.reply for step in record.steps]
    given = [texts[min(n, len(texts) - 1)] for n in range(len(replied))]
    missing = trace.metrics["turns"] - len(replied)
    # The episode's time limit can cut the last turn off.
    if replied != given or missing not in (0, 1):
        return "it does not have the model's replies"
    return ""
