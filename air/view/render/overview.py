"""Computes the main numbers of a run, such as its mean reward. All views (app, exported page, terminal) show
the same numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from air.view.index.facts import number
from air.view.index.run_discovery import Run, look_up
from air.view.render.markup import figure, seconds
from air.view.render.metric_series import quarters, series

Row = Mapping[str, Any]
Tile = tuple[str, str, str]
"""A main number of a run as three strings: its name, its value, and a remark."""


def kind(run: Run, metrics: Sequence[Row]) -> str:
    """Returns the kind of a run: `rl` or `sft` (reinforcement or supervised learning) for a training, or
    `eval` if no model is trained.

    `metrics` are the lines of the run's `metrics.jsonl`.
    """
    if metrics:
        return (
            "sft"
            if series(metrics, "optim/lr") and not any("reward" in r for r in metrics)
            else "rl"
        )
    return "rl" if "orchestrator" in run.config() else "eval"


def model(run: Run, metrics: Sequence[Row], models: Sequence[str]) -> str:
    """Returns the short name of the run's model, from the run's settings. If they do not name a model,
    returns the short names of `models`, which the recorded episodes name. `metrics` are the lines of the
    run's `metrics.jsonl`."""
    config = run.config()
    if name := look_up(config, "model", "name"):
        return short(str(name))
    if kind(run, metrics) == "sft":  # its folder is the trained model
        return short(str(config.get("_name_or_path") or "") or run.folder.name)
    names = list(dict.fromkeys(short(name) for name in models))
    return ", ".join(names[:3]) + (" …" if len(names) > 3 else "") or "–"


def short(model: str) -> str:
    """Returns a short name for a model: the last part of its path or hub id. For a checkpoint, these are the
    names of the run and of the checkpoint."""
    parts = [part for part in model.split("/") if part]
    if len(parts) > 2 and parts[-2] == "checkpoints":
        return f"{parts[-3]} {parts[-1]}"
    return parts[-1] if parts else "–"


def steps(run: Run, metrics: Sequence[Row]) -> str:
    """Returns the number of the run's last training step as text. If the settings say how many steps there
    will be, this number is added, as in `20/100`. `metrics` are the lines of the run's `metrics.jsonl`."""
    done, of = (int(metrics[-1]["step"]) if metrics else 0), look_up(run.config(), "max_steps")
    return f"{done}/{of}" if of else str(done or "–")


def tiles(
    run: Run, metrics: Sequence[Row], totals: Mapping[str, Any], models: Sequence[str]
) -> list[Tile]:
    """Returns the main numbers of a run, each as (name, value, remark). `metrics` are the lines of the run's
    `metrics.jsonl`, `totals` is the result of `RunIndex.totals`, and `models` are the names of the models in
    the recorded episodes."""
    first = ("model", model(run, metrics, models), kind(run, metrics))
    if first[2] == "sft":
        return [first, *_sft(run, metrics)]
    lost = (totals["failed"] or 0) + (totals["unfinished"] or 0)
    ended = f"{lost} failed or unfinished" if lost else "all ended well"
    wall = (totals["ended"] or 0) - (totals["started"] or 0)
    took = f"{seconds(wall)} in all" if wall > 0 else ""
    turns = (totals["turns"] or 0) / max(1, totals["episodes"])
    shared = [
        ("episodes", str(totals["episodes"]), ended),
        ("reward, all", figure(totals["reward"], "+z.3f"), "mean over episodes"),
        ("turns", figure(turns, ".1f"), "an episode"),
    ]
    if not metrics:
        return [first, *shared, ("time", seconds(wall if wall > 0 else None), "in all")]
    algo = str(look_up(run.config(), "orchestrator", "algo", "type") or "rl")
    before, after = quarters(metrics, "reward")
    reward = ("reward, last ¼", figure(after, "+z.3f"), f"first ¼ {figure(before, '+z.3f')}")
    speed = figure(number(metrics[-1].get("tokens_per_second")), ".0f")
    return [
        (*first[:2], algo),
        ("steps", steps(run, metrics), took),
        shared[0],
        reward,
        *shared[1:],
        ("tokens/s", speed, "last step"),
    ]


def _sft(run: Run, metrics: Sequence[Row]) -> list[Tile]:
    before, after = quarters(metrics, "loss/mean")
    held_out = series(metrics, "val/loss")
    trained, read, took = (
        sum(value for _, value in series(metrics, name))
        for name in ("tokens", "train_tokens", "time/step")
    )
    rates = series(metrics, "optim/lr")
    found = [
        ("steps", steps(run, metrics), f"{seconds(took)} in all"),
        ("loss, last ¼", figure(after, ".3f"), f"first ¼ {figure(before, '.3f')}"),
        ("tokens trained", f"{trained:,.0f}", f"of {read:,.0f} read"),
        ("tokens/s", figure(read / took if took else None, ".0f"), "read, mean"),
        ("learning rate", figure(rates[-1][1], ".2g"), f"highest {max(v for _, v in rates):.2g}"),
    ]
    if held_out:
        lowest = f"lowest {min(v for _, v in held_out):.3f}"
        found.insert(2, ("held-out loss", figure(held_out[-1][1], ".3f"), lowest))
    return found
