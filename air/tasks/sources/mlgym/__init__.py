"""Makes the tasks in the user's own checkout of MLGym available under the ids `mlgym:<config name>`.

This package contains nothing from MLGym (licence CC-BY-NC), and never changes the checkout, which provides
description, starter code, data, time limits, baseline scores and the evaluation script. Air's `table.toml`,
and the checkout's `configs/air.toml`, provide what MLGym lacks: primary metric, target, artefact, the data
that the agent may see, and the resources of a box.

Differences from MLGym, all on purpose:

- The agent's folder `data/` contains only the files that `table.toml` allows; answers stay with the grader.
- Only the artefact is evaluated, in a fresh grader box, with the checkout's evaluation script.
- MLGym has one evaluation, so the validation and the test split use the same one. A random evaluation gets
  a fixed key for each split, so equal artefacts have equal scores. The key follows from the split seed,
  which is secret in episodes. A strategy never sees it, and cannot compute it, or later random numbers, from
  the moves of its opponents. The noise floors in `table.toml` keep small
  random gains from being rewarded.
- In games, the runner of air's own tasks plays the agent's strategy (`strategy.py`) in a process with limits
  and a public seed, and the evaluation script gets only the strategy's moves. A strategy may use a tenth of
  MLGym's time limit as processor time. What it does wrong after its first move is told by the kind of error.
- MLGym takes the first line of a model's evaluation that begins with `{` as the score. Air takes the last
  one, because the agent's code can print such lines before the evaluation script prints the score.
"""

from __future__ import annotations

from air.tasks.sources.mlgym.checkout import PREFIX, Checkout, Status, find_checkout

__all__ = ["PREFIX", "Checkout", "Status", "find_checkout"]
