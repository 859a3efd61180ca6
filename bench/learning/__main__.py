"""Tests whether the quickstart's training improves a policy: `make learning`. For each seed, a fixed number
of episodes is played before and after training, and after a control run whose rewards are shuffled within
each group.

Each seed has its own warm start (training on demonstrations), training run and control run, and counts as one
data point. With `delta = "best"`, more tries alone earn more reward. Therefore the table also shows the
gains, as normalised scores φ, at equal numbers of tries (the first try, the best of two tries), of the last
submission, and on the test split. The exit code is 0 if the mean gains of the reward, of the scores at equal
numbers of tries, and of the test score exceed two standard errors each, and the control's gain of the reward
does not.

    python -m bench.learning --seeds 3 --episodes 200 --out outputs/learning

`--recipe two-validates reward-to-go` trains with changes of the quickstart's run file (see `RECIPES`). The
gains are measured without these changes, so the results of several recipes can be compared.

With `--algorithms`, every algorithm is tried on a small game instead: see `algorithms.py`. With
`--worlds`, a policy learns the games of `air.worlds.games`: see `worlds.py`. With `--harbor`, it
learns a family of Harbor tasks: see `harbor.py`. With `--tools`, it learns when to call the
calculator: see `tools.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from air.cli.runs import demos
from air.tasks.splits import PUBLIC, VARIABLE
from air.train.config import overrides
from air.train.config.run_config import RunConfig
from air.train.evaluation import episode_scores
from air.train.evaluation.play import evaluate, served
from air.train.loop import metrics
from air.train.loop.progress import Progress
from air.train.loop.rollout import Rollout, with_defaults
from air.train.loop.run import EmbeddedRun
from air.train.model import policy as policies
from bench.learning import algorithms, harbor, tools, worlds
from bench.learning.seeds import CONFIGS, mean_and_error, warm_start

BY_TRIES = {
    "φ first try": "first",
    "φ best of two tries": "best of 2",
    "φ last submission": "last",
    "φ test score": "test",
    "φ best of all tries": "best",
    "tries": "tries",
}
"""For each row of the table that concerns tries (validates): the name of the measure of
`air.train.evaluation.episode_scores` that it shows."""
EQUAL_TRIES = ("φ first try", "φ best of two tries", "φ last submission", "φ test score")
"""The measures that do not rise merely because a policy tries (validates) more often."""
_ENV = "--orchestrator.train.source.0.env"
RECIPES: dict[str, tuple[str, ...]] = {
    "two-validates": (f"{_ENV}.max-validates", "2"),
    "dear-validates": (f"{_ENV}.validate-penalty", "0.2"),
    "reward-to-go": ("--embedded.reward-to-go",),
    "segment": (f"{_ENV}.credit", "segment"),
    "previous": (f"{_ENV}.delta", "previous"),
    "holdout": (f"{_ENV}.final", "holdout"),
    "longer": ("--max-steps", "60"),
}
"""Named changes of the quickstart's run file, as flags, that may raise the scores at equal numbers of
tries."""
MEASURES = ("reward", "delta", "penalties", "well_formed", "turns", "scored", "worth", *BY_TRIES)
"""The rows of the table. `scored` is the share of episodes with a scored validate. `worth` is the mean reward
from scores of such an episode."""


def main() -> int:
    if "--algorithms" in sys.argv:
        return algorithms.main()
    if "--worlds" in sys.argv:
        return worlds.main()
    if "--harbor" in sys.argv:
        return harbor.main()
    if "--tools" in sys.argv:
        return tools.main()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=200, help="of each task, before and after")
    parser.add_argument("--demos", type=int, default=150, help="demonstrations of each task")
    parser.add_argument("--out", type=Path, default=Path("outputs/learning"))
    parser.add_argument(
        "--runtime",
        choices=("docker", "subprocess"),
        default="subprocess",
        help="process boxes start faster; what is learnt is the same",
    )
    parser.add_argument(
        "--recipe",
        nargs="+",
        choices=RECIPES,
        default=[],
        help="changes of the quickstart's run file with which trained and control are trained",
    )
    parser.add_argument("--only-real", action="store_true", help="leave the control out")
    args, rest = parser.parse_known_args()
    if args.out.exists() and any(args.out.iterdir()) and not (args.out / "results.json").exists():
        parser.error(f"{args.out} has content that is not this program's; name another --out")
    os.environ.setdefault(VARIABLE, PUBLIC)  # so that results of several machines can be compared
    shutil.rmtree(args.out, ignore_errors=True)
    args.out.mkdir(parents=True)
    (args.out / "results.json").write_text("[]")
    began = time.monotonic()
    training_config(args, "x", rest)  # reports settings that do not fit before hours are spent
    tasks = run_config(args, "x", rest).orchestrator.train.source[0].env.taskset.tasks  # type: ignore[attr-defined]
    data = demos.write(args.out / "demos", tasks, args.demos, seed=0, runtime=args.runtime)
    results = []
    for seed in range(args.seeds):
        results.append(one_seed(args, rest, seed, data))
        (args.out / "results.json").write_text(json.dumps(results, indent=1))
        report(results, time.monotonic() - began)
    return verdict(results)


def one_seed(args: argparse.Namespace, rest: list[str], seed: int, data: Path) -> dict[str, Any]:
    """Runs the experiment with one seed: the warm start (training on demonstrations), then from there the
    training and the control run, whose rewards are shuffled. Returns the measures of the policy before both,
    after the training, and after the control run."""
    warm = warm_start(args.out / f"seed{seed}", data, seed)
    result: dict[str, Any] = {"seed": seed, "before": measure(args, rest, warm)}
    arms = ["trained"] if args.only_real else ["trained", "control"]
    for arm in arms:
        config = training_config(args, arm, rest, seed=seed, model=warm)
        began = time.monotonic()
        with Progress(config.max_steps, title=f"seed {seed} {arm}") as progress:
            outcome = asyncio.run(EmbeddedRun(config, progress).run())
        assert outcome.checkpoint is not None
        result[arm] = measure(args, rest, outcome.checkpoint)
        result[arm]["train_seconds"] = time.monotonic() - began
    return result


def training_config(
    args: argparse.Namespace, arm: str, rest: Sequence[str], **more: Any
) -> RunConfig:
    """Returns the quickstart's settings for the training `arm`, with the changes of the flag `--recipe` and,
    after them, the flags `rest` of the command line. `more` is passed to `run_config`."""
    changes = [flag for name in args.recipe for flag in RECIPES[name]]
    return run_config(args, arm, [*changes, *rest], **more)


def run_config(
    args: argparse.Namespace,
    arm: str,
    rest: Sequence[str],
    *,
    seed: int = 0,
    model: Path | None = None,
) -> RunConfig:
    """Returns the quickstart's settings for one training. `arm` names it; for the arm `control`, the control
    run, the settings include the overlay that shuffles rewards within each group."""
    files = [f"@{CONFIGS / 'quickstart.toml'}"]
    if arm == "control":
        files.append(f"@{CONFIGS / 'embedded' / 'shuffled.toml'}")
    flags = [
        "--embedded.seed",
        str(seed),
        "--model.name",
        str(model or "unset"),
        "--output-dir",
        str(args.out),
    ]
    flags += ["--run.name", f"seed{seed}/{arm}"]
    flags += ["--orchestrator.train.source.0.env.agent.runtime.type", args.runtime]
    return overrides.build(RunConfig, overrides.parse([*files, *flags, *rest], RunConfig))


def measure(args: argparse.Namespace, rest: Sequence[str], model: Path) -> dict[str, Any]:
    """Plays `args.episodes` episodes of each task at the training temperature, and returns their measures."""
    config = run_config(args, "x", rest, model=model)
    rollouts = asyncio.run(_play(config, model, args.episodes))
    good = [r for r in rollouts if r.ok]
    found = numbers(good) | {"episodes": len(rollouts), "failed": len(rollouts) - len(good)}
    found["tasks"] = {
        task: numbers(played) | {"test_score": metrics.mean(r.metric("test_score") for r in played)}
        for task, played in metrics.by_task(good).items()
    }
    return found


async def _play(config: RunConfig, model: Path, episodes: int) -> list[Rollout]:
    policy = policies.load(model)
    env = with_defaults(
        config.orchestrator.train.source[0].env, policy, max_context_tokens=config.seq_len
    )
    sampling = config.orchestrator.train.sampling
    async with served(
        policy,
        temperature=sampling.temperature,
        max_tokens=sampling.max_completion_tokens or 512,
        max_model_len=config.seq_len,
    ) as ctx:
        return await evaluate(env, ctx, episodes)


def numbers(rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """Returns the measures of episodes that are rows of the table (`MEASURES`). The share of scored episodes
    (`scored`) times their mean reward from scores (`worth`) is `delta`, so that a gain of `delta` can be
    split into two parts."""
    found = metrics.of_rollouts(rollouts)
    found["delta"] = found.get("reward/delta")
    found["scored"] = metrics.mean(float(bool(r.metric("scored_validates"))) for r in rollouts)
    found["worth"] = (found["delta"] or 0.0) / (found["scored"] or 1.0)
    found["penalties"] = (found["reward"] or 0.0) - (found["delta"] or 0.0)
    found |= by_tries([episode_scores.EpisodeScores.of_rollout(rollout) for rollout in rollouts])
    return {name: found[name] for name in MEASURES}


def by_tries(episodes: Sequence[episode_scores.EpisodeScores]) -> dict[str, float | None]:
    """Returns those measures of episodes that concern tries (`BY_TRIES`), by the row's name in the table.
    Each is the mean over tasks of the task's mean."""
    means = {
        name: episode_scores.overall(episodes, episode_scores.MEASURES[of])
        for name, of in BY_TRIES.items()
    }
    return {name: None if mean is None else mean.mean for name, mean in means.items()}


def gains(results: Sequence[dict[str, Any]], arm: str) -> dict[str, list[float]]:
    """Returns, for each measure, the gain of every seed (after minus before). Also splits the gain of `delta`
    into a part from more scored episodes and a part from better scores."""
    table: dict[str, list[float]] = {name: [] for name in (*MEASURES, "by_validity", "by_score")}
    for result in results:
        before, after = result["before"], result[arm]
        for name in MEASURES:
            table[name].append((after[name] or 0.0) - (before[name] or 0.0))
        table["by_validity"].append((after["scored"] - before["scored"]) * before["worth"])
        table["by_score"].append(after["scored"] * (after["worth"] - before["worth"]))
    return table


def report(results: Sequence[dict[str, Any]], seconds: float) -> None:
    """Prints a table of the results so far."""
    table = Table(title=f"{len(results)} seed(s), {seconds / 60:.1f} min", title_justify="left")
    arms = [arm for arm in ("trained", "control") if arm in results[0]]
    table.add_column("measure")
    for name in ("before", *(f"{arm}: gain ± s.e. (each seed)" for arm in arms)):
        table.add_column(name, justify="right")
    for name in (*MEASURES, "by_validity", "by_score"):
        before = metrics.mean(r["before"].get(name) for r in results)
        cells = ["" if before is None else f"{before:.3f}"]
        for arm in arms:
            values = gains(results, arm)[name]
            mean, error = mean_and_error(values)
            cells.append(f"{mean:+.3f} ± {error:.3f} ({', '.join(f'{v:+.3f}' for v in values)})")
        table.add_row(name, *cells)
    Console(width=140).print(table)


def verdict(results: Sequence[dict[str, Any]]) -> int:
    """Prints the conclusions and returns the exit code. It is 0 if the trained arm's reward, its scores at
    equal numbers of tries and its test score rise by more than two standard errors, and the control's reward
    does not."""
    learnt = True
    # First the measures that more tries alone do not raise; then the score, and what malformed replies cost.
    for measure in (*EQUAL_TRIES, "delta", "reward"):
        mean, error = mean_and_error(gains(results, "trained")[measure])
        rises = mean > 2 * error
        learnt = learnt and (rises or measure == "delta")
        print(
            f"trained {measure}: {mean:+.4f} ± {error:.4f}: {'rises' if rises else 'does NOT rise'}"
        )
    if "control" not in results[0]:
        return 0 if learnt else 1
    mean, error = mean_and_error(gains(results, "control")["reward"])
    rises = mean > 2 * error
    print(f"control reward: {mean:+.4f} ± {error:.4f}: {'RISES' if rises else 'does not rise'}")
    return 0 if learnt and not rises else 1


if __name__ == "__main__":
    raise SystemExit(main())
