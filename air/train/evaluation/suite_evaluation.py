"""Plays a benchmark suite (a set of benchmarks of questions), and makes the table of the measured and the
published accuracies.

The accuracy of a benchmark is pass@1: the mean over questions of each question's share of right answers. The
standard error is computed over questions, because samples of one question depend on each other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import verifiers.v1 as vf
from rich.table import Table

from air.env.config import AirHarnessConfig, ResearchEnvConfig
from air.train.config.embedded_config import ComputeConfig
from air.train.evaluation.episode_scores import EpisodeScores, Estimate, estimate
from air.train.evaluation.play import evaluate
from air.train.evaluation.resumable_evaluation import TRAJECTORIES, Evaluation
from air.train.evaluation.settings import Settings, research_env
from air.train.evaluation.suites import Data, Suite
from air.train.loop.progress import plain_table
from air.train.loop.rollout import Rollout
from air.worlds.rows.splits import place_of
from air.worlds.sources import VALIDATION_SEED

TEMPERATURE, TOKENS, CONTEXT = 1.0, 4096, 8192
"""The defaults for sampling replies: temperature, longest reply and longest episode (both in tokens)."""


@dataclass(frozen=True)
class SuiteEvaluation(Evaluation):
    """The evaluation of one model on the benchmarks in `data`. The model answers each question of a benchmark
    as often as the field `samples` of its data says."""

    data: Sequence[Data] = ()

    def wanted(self, _: int) -> dict[str, int]:
        """Returns, by the id of the benchmark's task, how many episodes the evaluation needs in total: the
        number of questions times the number of answers to each question. The argument is not used; it is
        there because the base class has it."""
        return {one.task: one.episodes for one in self.data}

    def missing(self, episodes: int) -> dict[str, int]:
        """Returns, by the id of the benchmark's task, how many episodes must still be played. `episodes` is
        not used; it is there because the base class has it."""
        done = self._seeds()
        return {task: n - len(done[task]) for task, n in self.wanted(episodes).items()}

    async def play(
        self,
        ctx: vf.ModelContext,
        missing: Mapping[str, int],
        fill_in_settings: Callable[[ResearchEnvConfig], ResearchEnvConfig],
    ) -> list[Rollout]:
        """Plays the missing episodes, one for each seed that no recorded episode has, with the model in
        `ctx`. Records them, and returns their results. `missing` has the number of episodes to play, by task
        id. `fill_in_settings` returns a copy of an environment's settings in which the settings that depend
        on the model are filled in."""
        rollouts: list[Rollout] = []
        done = self._seeds()
        for one, env in zip(self.data, self.settings.envs, strict=True):
            if missing[one.task]:
                changes = {"purpose": "evaluation", "examples_per_task": one.episodes}
                taskset = env.taskset.model_copy(update=changes)
                folder = self.folder / TRAJECTORIES
                now = fill_in_settings(
                    env.model_copy(update={"taskset": taskset, "record_dir": folder})
                )
                seeds = done[one.task]

                def unplayed(task: Any, seeds: set[int] = seeds) -> bool:
                    return task.data.seed not in seeds

                rollouts += await evaluate(now, ctx, {one.task: missing[one.task]}, keep=unplayed)
        return rollouts

    def _seeds(self) -> dict[str, set[int]]:
        """Returns, by task id, the seeds of the recorded episodes. Ignores seeds outside the range that the
        evaluation uses."""
        played: dict[str, set[int]] = {one.task: set() for one in self.data}
        episodes = {one.task: one.episodes for one in self.data}
        for one in self.episodes():
            number = -1 if one.seed is None else one.seed - VALIDATION_SEED
            if 0 <= number < episodes.get(one.task, 0):
                played[one.task].add(number + VALIDATION_SEED)
        return played

    def _identity(self) -> dict[str, Any]:
        """Returns the content of `evaluation.json`: the model, the settings and a digest of the questions.
        The number of answers to each question is not part of this content, so a user can raise this number
        later."""
        digests = {one.task: one.digest for one in self.data}
        return {**super()._identity(), "data": json.loads(json.dumps(digests))}


def suite_settings(
    data: Sequence[Data],
    *,
    runtime: str,
    temperature: float | None,
    max_tokens: int | None,
    context: int | None,
    max_turns: int | None = None,
    renderer: Any = None,
    compute: ComputeConfig | None = None,
) -> Settings:
    """Returns the settings for playing a suite. `runtime` is the kind of box (where commands run), such as
    `docker`. `max_turns` limits the turns of an episode; None: each task has its own limit. If `temperature`,
    `max_tokens` (longest reply) or `context` (longest episode, in tokens) is None, it is `TEMPERATURE`,
    `TOKENS` or `CONTEXT` for every model. A question may be as long as the context, so no question is
    shortened."""
    longest = context or CONTEXT
    envs = []
    for one in data:
        env = research_env([one.task], runtime=runtime, max_turns=max_turns)
        harness = (env.agent.harness or AirHarnessConfig()).model_copy(
            update={"max_observation_tokens": longest}
        )
        agent = env.agent.model_copy(update={"harness": harness})
        envs.append(env.model_copy(update={"agent": agent}))
    return Settings(
        envs,
        temperature=TEMPERATURE if temperature is None else temperature,
        max_tokens=max_tokens or TOKENS,
        context=longest,
        renderer=renderer,
        compute=compute or ComputeConfig(),
    )


def accuracy(data: Data, episodes: Sequence[EpisodeScores]) -> Estimate | None:
    """Returns the accuracy of a model on the benchmark of `data`, from 0 to 1, or None if none of the
    `episodes` belongs to this benchmark."""
    right: dict[int, list[float]] = {}
    for one in episodes:
        number = -1 if one.seed is None else one.seed - VALIDATION_SEED
        if one.task == data.task and 0 <= number < data.episodes:
            place = place_of(number + VALIDATION_SEED, len(data.rows))
            right.setdefault(place, []).append(one.success or 0.0)
    return estimate(fmean(shares) for shares in right.values())


def suite_table(suite: Suite, evaluations: Sequence[SuiteEvaluation]) -> Table:
    """Returns the table of measured and published accuracies, in percent. The table also has the published
    accuracies of benchmarks for which the user has no data."""
    result = plain_table(
        "accuracy in percent (pass@1): mean ± standard error over questions\n"
        f"published: {suite.source}"
    )
    result.add_column("benchmark", no_wrap=True)
    for name in ("model", "accuracy", "check", "questions", "samples", "played"):
        result.add_column(name, justify="right", no_wrap=True)
    played = [(one, one.episodes()) for one in evaluations]
    for benchmark in suite.benchmarks:
        for evaluation, episodes in played:
            for data in evaluation.data:
                if data.benchmark == benchmark:
                    result.add_row(benchmark.title, evaluation.label, *_cells(data, episodes))
        for model, percent in (benchmark.published or {}).items():
            result.add_row(benchmark.title, f"{model}, published", f"{percent:.1f}", *[""] * 4)
    return result


def _cells(data: Data, episodes: Sequence[EpisodeScores]) -> list[str]:
    """Returns the cells of one benchmark in the table: the accuracy, whether it is above `Benchmark.above`,
    the numbers of questions and samples, and how many episodes were played."""
    mean, above = accuracy(data, episodes), data.benchmark.above
    seeds = range(VALIDATION_SEED, VALIDATION_SEED + data.episodes)
    count = len({one.seed for one in episodes if one.task == data.task and one.seed in seeds})
    check = ""
    if mean is not None and above is not None and count < data.episodes:
        check = "incomplete"
    elif mean is not None and above is not None:
        check = f"{'above' if 100 * mean.mean > above else 'not above'} {above:g}"
    shown = "–" if mean is None else f"{100 * mean.mean:.1f}"
    if mean is not None and mean.stderr is not None:
        shown += f" ± {100 * mean.stderr:.1f}"
    played = f"{count}/{data.episodes}"
    return [shown, check, str(len(data.rows)), str(data.samples), played]
