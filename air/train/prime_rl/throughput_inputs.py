"""Computes, from the settings of a run, the input of `air.train.prime_rl.throughput`, which estimates the
duration of the run. Works for both training engines: prime-rl, and air's own engine `embedded`."""

from __future__ import annotations

import verifiers.v1 as vf

from air.env.config import ResearchEnvConfig
from air.sandbox.pool import gpus
from air.sandbox.pool.host_slots import max_boxes
from air.train.config.run_config import RunConfig
from air.train.prime_rl.run_file import PrimeView, SourceView
from air.train.prime_rl.throughput import Load, Source, Task, workers
from air.worlds import sources

DEFAULT_BATCH = 128
"""The number of episodes in a training step that prime-rl uses if a run file has neither `batch_size` nor
`token_batch_size`."""


def of_prime(view: PrimeView, *, boxes: int | None) -> Load:
    """Returns the input of the estimate for a run with prime-rl, whose settings are in `view`.

    `boxes` is the number of GPUs on this machine for boxes (agents' sandboxes), needed if the run file sets
    `gpus = "auto"`; None: unknown. If the run file sets `token_batch_size` instead of `batch_size`, the
    number of episodes in a step is assumed to equal the maximum number of concurrent episodes. Raises
    MissingError if a task does not exist, and ConfigError if `AIR_MAX_BOXES` is not a positive integer.
    """
    orchestrator = view.orchestrator
    batch = orchestrator.batch_size
    if batch is None and orchestrator.token_batch_size is None:
        batch = DEFAULT_BATCH
    limits = [orchestrator.concurrency.max_inflight, batch and 2 * batch]
    in_flight = next((limit for limit in limits if limit), 1)
    return Load(
        sources=tuple(
            _of_source(source, orchestrator.group_size, in_flight, boxes)
            for source in orchestrator.train.source
        ),
        batch_size=batch or in_flight,
        in_flight=in_flight,
        host_boxes=max_boxes(),
        bound=orchestrator.max_off_policy_steps,
        max_steps=view.max_steps,
    )


def of_embedded(config: RunConfig) -> Load:
    """Returns the input of the estimate for a run with the engine `embedded`, which is part of air. Raises
    MissingError if a task does not exist. Raises ConfigError if this machine lacks a GPU that the run file
    names, or if `AIR_MAX_BOXES` is not a positive integer."""
    orchestrator = config.orchestrator
    return Load(
        sources=tuple(
            _source(
                source.resolved_name,
                source.env,
                ratio=source.ratio,
                group_size=source.group_size or orchestrator.group_size,
                auto=_auto(source.env),
            )
            for source in orchestrator.train.source
        ),
        batch_size=orchestrator.batch_size,
        in_flight=orchestrator.batch_size,
        host_boxes=max_boxes(),
        bound=None,
        max_steps=config.max_steps,
    )


def _of_source(source: SourceView, group_size: int, in_flight: int, auto: int | None) -> Source:
    pool = source.serve.pool
    if pool.type == "static":
        processes = pool.num_workers
    else:
        processes = workers(most=pool.max_workers, multiplex=pool.multiplex, in_flight=in_flight)
    return _source(
        source.resolved_name,
        source.env,
        ratio=source.ratio,
        group_size=source.group_size or group_size,
        processes=processes,
        auto=None if source.elsewhere else auto,
        elsewhere=source.elsewhere,
    )


def _source(
    name: str,
    env: vf.EnvConfig,
    *,
    ratio: float,
    group_size: int,
    processes: int = 1,
    auto: int | None,
    elsewhere: bool = False,
) -> Source:
    if not isinstance(env, ResearchEnvConfig):
        return Source(name, (Task(name, 3600.0),), ratio, group_size, elsewhere=elsewhere)
    taskset = env.taskset
    worlds = tuple(Task(w.id, env.limit_of(w.seconds)) for w in map(sources.load, taskset.worlds))
    if not taskset.research:
        return Source(name, worlds, ratio, group_size, elsewhere=elsewhere)
    specs = taskset.research_tasks()
    grader_gpus = max(spec.grader.gpus for spec in specs)
    return Source(
        name,
        (*worlds, *(Task(spec.id, env.episode_seconds(spec), spec.gpus) for spec in specs)),
        ratio,
        group_size,
        boxes=processes * env.max_boxes,
        gpus=_names(env, auto, grader_gpus),
        slots_per_gpu=env.slots_per_gpu,
        elsewhere=elsewhere,
    )


def _names(env: ResearchEnvConfig, auto: int | None, grader_gpus: int) -> tuple[str, ...] | None:
    """Returns names for the GPUs that agents' boxes (sandboxes) can use: the GPUs of the setting `env.gpus`
    except the last `grader_gpus`, which graders use. If the setting is "auto", `auto` is the number of GPUs,
    and the names are invented (`auto 0`, `auto 1`, …); if `auto` is None (unknown), returns None."""
    if env.gpus == "auto":
        if auto is None:
            return None
        names = [f"auto {number}" for number in range(auto)]
    else:
        names = list(env.gpus)
    return tuple(names[: max(0, len(names) - grader_gpus)])


def _auto(env: vf.EnvConfig) -> int:
    if not isinstance(env, ResearchEnvConfig) or env.gpus != "auto":
        return 0
    return len(gpus.plan(env.gpus, trainer=env.trainer_gpus, inference=env.inference_gpus))
