"""Tests whether every algorithm learns a small game without boxes: `make learning ARGS=--algorithms`.

For each algorithm and seed, the same untrained policy is trained on `game.py` twice: with the
algorithm's rewards, and as a control. The control's rewards are shuffled within each group; for `opd` and
`sft`, which use no rewards, the control has an untrained teacher. The teacher of `sft` plays the training's
episodes, behind air's inference server. Sampler, algorithms, value model, teacher, greedy
episodes, losses and trainer are those of a normal run. Before and after, all 64 games are played four times
each.

An algorithm has learnt if the mean gain over its seeds minus two standard errors exceeds the control's gain
plus two standard errors; one seed has no error and proves nothing. The exit code is 0 if all algorithms have
learnt. The folder `--out` gets results.json, table.md and curves.png. The same command continues a run that
was stopped.

    python -m bench.learning.algorithms --seeds 3 --out outputs/algorithms
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from renderers import DefaultRendererConfig

from air import train
from air.train.config.run_config import RunConfig
from air.train.loop import further_models
from air.train.loop.samples import samples
from air.train.loop.trainer import Trainer
from air.train.model import policy as policies
from air.train.serving.server import InferenceServer
from bench.learning import game

GROUPS, GROUP_SIZE, STEPS = 8, 8, 40
EVALUATED = 4
"""The number of times that each game is played before training, and again after it."""
TEACHER = "grpo"
"""The algorithm whose trained policy of the same seed is the teacher of the algorithms in `TAUGHT`."""
TAUGHT = ("opd", "sft")
"""The algorithms that learn from a teacher, not from rewards."""
ARMS = ("trained", "control")
FASTER_VALUES = {"value_model": {"optim": {"lr": 3e-3}, "warmup_steps": 5}}
ALGORITHMS: dict[str, dict[str, Any]] = {
    TEACHER: {},
    "grpo, reward to go": {"embedded": {"reward_to_go": True}},
    "grpo_std": {},
    "max_rl": {},
    "rae": {},
    "rloo": {},
    "reinforce_plus_plus": {},
    "reinforce_plus_plus_baseline": {},
    "adpo": {"trainer": {"loss": {"type": "ppo_clip"}}},
    "gae": {"trainer": {"loss": {"type": "ppo_clip"}}, "embedded": FASTER_VALUES},
    "remax": {},
    "opd": {},
    "sft": {},
}
"""The settings of each tried algorithm. In a key, the part before the first comma is the algorithm's name."""

Result = dict[str, Any]
"""The result of one training: `algorithm`, `arm`, `seed`, `start` and `end` (mean rewards before and after),
and `rewards` (the mean reward of each step)."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algorithms", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--only", nargs="+", choices=list(ALGORITHMS), default=list(ALGORITHMS))
    parser.add_argument("--out", type=Path, default=Path("outputs/algorithms"))
    args = parser.parse_args(arguments)
    if TEACHER not in args.only and (taught := [one for one in TAUGHT if one in args.only]):
        parser.error(f"{taught[0]} learns from what {TEACHER} has trained: name both under --only")
    torch.set_num_threads(1)  # small matrices gain nothing from threads
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / "results.json"
    results: list[Result] = json.loads(file.read_text()) if file.is_file() else []
    began, done = time.monotonic(), {key(result) for result in results}
    for seed in range(args.seeds):
        for name in args.only:
            for arm in ARMS:
                if (name, arm, seed, args.steps) not in done:
                    results.append(one_run(name, arm, seed, args.steps, args.out))
                    file.write_text(json.dumps(results))
    results = [one for one in results if one["steps"] == args.steps]
    lines, learnt = table(results, args.only)
    (args.out / "table.md").write_text("\n".join(lines) + "\n")
    draw(results, args.only, args.out / "curves.png")
    print("\n".join(lines))
    print(f"{time.monotonic() - began:.0f} s; table and curves are in {args.out}")
    return 0 if learnt else 1


def key(result: Result) -> tuple[str, str, int, int]:
    """Returns the values that identify a training among the results."""
    return result["algorithm"], result["arm"], result["seed"], result["steps"]


def run_config(name: str, model: Path, teacher: Path, steps: int, url: str = "") -> RunConfig:
    """Returns the settings of a training, as a run file would state them. For `sft`, `url` is the address of
    the server on which the teacher plays."""
    algo: dict[str, Any] = {"type": name.partition(",")[0]}
    if name == "opd":
        algo["teacher"] = {"name": str(teacher)}
    if name == "sft":
        algo["sampling"] = {"source": {"name": str(teacher), "base_url": url}}
    settings = {
        "max_steps": steps,
        "seq_len": game.CONTEXT,
        "model": {"name": str(model)},
        "trainer": {"optim": {"lr": 3e-3}},
        "embedded": {"device": "cpu"},
        "orchestrator": {
            "batch_size": GROUPS * GROUP_SIZE,
            "group_size": GROUP_SIZE,
            "algo": algo,
            # No environment is opened: the game is played here.
            "train": {"source": [{"env": {"taskset": {"id": "air", "tasks": ["titanic"]}}}]},
        },
    }
    return train.load(settings, ALGORITHMS[name])


def one_run(name: str, arm: str, seed: int, steps: int, out: Path) -> Result:
    """Trains one policy with the algorithm `name`, either for the result (`arm` is `trained`) or as the
    control, and returns the training's result."""
    began = time.monotonic()
    folder = out / f"seed{seed}"
    starts = {n: folder / f"start{n}" for n in (0, 1)}  # the second is the control's teacher
    for n, start in starts.items():
        if not (start / "config.json").is_file():
            game.build(start, 1000 * n + seed)
    control = arm == "control"
    teacher = starts[1] if control else folder / "teacher"
    policy = policies.load(starts[0])
    before = evaluate(policy, seed)
    with serving(teacher, needed=name == "sft") as url:
        config = run_config(name, starts[0], teacher, steps, url)
        shuffled = control and name not in TAUGHT
        rewards, mismatch = trained(policy, config, seed, shuffled=shuffled)
    if name == TEACHER and not control:
        policy.save(folder / "teacher")
    result = {
        **{"algorithm": name, "arm": arm, "seed": seed, "steps": steps},
        **{"start": before, "end": evaluate(policy, seed), "rewards": rewards},
        **{"mismatch_kl": mismatch, "seconds": time.monotonic() - began},
    }
    print(
        f"seed {seed}  {name:<29} {arm:<8} {result['start']:.3f} → {result['end']:.3f}  "
        f"{result['seconds']:.0f} s",
        flush=True,
    )
    return result


@contextmanager
def serving(teacher: Path, *, needed: bool) -> Iterator[str]:
    """Context manager: inside the block, air's inference server samples from the model in the folder
    `teacher`. Yields the server's address; without a server, if it is not needed, an empty text."""
    if not needed:
        yield ""
        return
    policy = policies.load(teacher)
    policy.renderer_config = DefaultRendererConfig()  # the game's words have no tokens of a chat
    with InferenceServer(policy, name=str(teacher), max_batch=GROUPS * GROUP_SIZE) as server:
        yield f"{server.url}/v1"


def trained(
    policy: policies.Policy, config: RunConfig, seed: int, *, shuffled: bool
) -> tuple[list[float], float]:
    """Trains `policy` in place. Returns the mean reward of each step (for `sft`: the teacher's), and the
    largest `mismatch_kl` of any step: the divergence between the sampler's and the trainer's
    probabilities."""
    algorithm = config.algorithm()
    models = further_models.load(algorithm.needs, config, policy, print)
    trainer = Trainer(policy, config.trainer.optim, loss=config.loss)
    source = config.sampling_source
    player = policy if source is None else game.of_server(str(source.base_url))
    rewards, mismatch = [], 0.0
    for step in range(1, config.max_steps + 1):
        rng = random.Random(f"{seed} {step}")
        games = [rng.choice(game.EVERY_GAME) for _ in range(GROUPS)]
        groups = game.play(player, games, GROUP_SIZE, f"{seed} {step}", greedy=models.greedy)
        scored = models.score(groups)
        batch = samples(
            groups,
            algorithm,
            1.0,
            by_turn=config.rewards_at_turns,
            shuffle=rng if shuffled else None,
            inputs=scored,
        )
        if models.trains_policy(step):
            mismatch = max(mismatch, trainer.step(batch)["mismatch_kl"])
        models.train(batch, scored)
        rewards.append(game.reward(groups))
    models.close()
    return rewards, mismatch


def evaluate(policy: policies.Policy, seed: int) -> float:
    """Returns the policy's mean reward over all games."""
    return game.reward(game.play(policy, game.EVERY_GAME, EVALUATED, f"evaluation {seed}"))


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Returns the mean and its standard error, where each value is one data point. The error is infinite for
    one value."""
    if len(values) < 2:
        return values[0], math.inf
    return statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))


def table(results: Sequence[Result], names: Sequence[str]) -> tuple[list[str], bool]:
    """Returns the lines of the table, and whether every algorithm has learnt."""
    lines = ["| algorithm | start | end | end of control | gain | gain of control | learns |"]
    lines.append("|---|---|---|---|---|---|---|")
    every = True
    for name in names:
        of = {
            arm: [r for r in results if r["algorithm"] == name and r["arm"] == arm] for arm in ARMS
        }
        start = mean_and_error([r["start"] for r in of["trained"]])
        ends = {arm: mean_and_error([r["end"] for r in of[arm]]) for arm in ARMS}
        gains = {arm: mean_and_error([r["end"] - r["start"] for r in of[arm]]) for arm in ARMS}
        learnt = learns(gains)
        every = every and learnt
        cells = (start, ends["trained"], ends["control"], gains["trained"], gains["control"])
        numbers = " | ".join(
            f"{mean:.3f} ± {error:.3f}" if math.isfinite(error) else f"{mean:.3f}"
            for mean, error in cells
        )
        lines.append(f"| {name} | {numbers} | {'yes' if learnt else 'NO'} |")
    return lines, every


def learns(gains: Mapping[str, tuple[float, float]]) -> bool:
    """Whether an algorithm has learnt: its gain of reward minus two standard errors exceeds the control's
    gain plus two standard errors. `gains` contains a pair (mean, standard error) for each of `trained` and
    `control`."""
    (gain, error), (other, others) = gains["trained"], gains["control"]
    return gain - 2 * error > other + 2 * others


def draw(results: Sequence[Result], names: Sequence[str], file: Path) -> None:
    """Draws the rewards of all trainings: a panel for each algorithm, a line for each seed."""
    from matplotlib.figure import Figure

    columns = min(4, len(names))
    lines = math.ceil(len(names) / columns)
    figure = Figure(figsize=(3 * columns, 2.3 * lines), layout="constrained")
    panels = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).flat
    for panel, name in zip(panels, names, strict=False):
        panel.set_title(name, fontsize=8)
        panel.set_ylim(0, 1)
        for result in results:
            if result["algorithm"] == name:
                colour = "tab:blue" if result["arm"] == "trained" else "tab:gray"
                panel.plot(range(1, 1 + len(result["rewards"])), result["rewards"], colour, lw=0.9)
    figure.supxlabel("step", fontsize=8)
    figure.supylabel("mean reward (blue: trained, grey: control)", fontsize=8)
    figure.savefig(file, dpi=110)


if __name__ == "__main__":
    raise SystemExit(main())
