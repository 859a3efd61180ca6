"""Makes the tasks in the user's own checkout of MLGym available under the ids `mlgym:<config name>`.

This package contains nothing from MLGym (licence CC-BY-NC). The user names the folder of the checkout by the
key `mlgym_root` in a run file (TOML), by the flag `--mlgym-root` or by the environment variable
`AIR_MLGYM_ROOT`. Files in the checkout are never changed. `air tasks` shows in one line why a task is
incomplete in the checkout or cannot run on this machine.

The checkout provides the description, starter code, data, time limits, baseline scores and the evaluation
script, which runs unchanged. Air's file `table.toml`, and further entries in the checkout's
`configs/air.toml`, provide what MLGym's files lack: the primary metric and its direction, the target, the
artefact, the data that the agent is allowed to see, and the resources of a box.

Differences from MLGym, all on purpose:

- The agent's folder `data/` contains only the files that `table.toml` allows; answers stay with the grader.
- Only the artefact is evaluated, in a fresh grader box, with the checkout's evaluation script.
- MLGym has one evaluation, so the validation and the test split use the same one. A random evaluation gets
  a fixed seed for each split, so equal artefacts have equal scores. The seed follows from the split seed and
  is no secret: a strategy with a copy of its opponent's generator could predict it. The noise floors in
  `table.toml` keep small random gains from being rewarded.
- In games, the agent's strategy (`strategy.py`) runs in its own process, and the evaluation script gets only
  the strategy's moves.
- MLGym takes the first line of a model's evaluation that begins with `{` as the score. Air takes the last
  one, because the agent's code can print such lines before the evaluation script prints the score.

A task's `trust` states how grading uses the artefact. `data`: the grader only reads it. `code`: the artefact
runs as another user, in another process than the evaluation script. `evaluator`: MLGym's own script imports
the artefact, so a determined agent can print any score. The script then still runs as another user in a
grader box, and a script that ended early earns nothing; but read the submitted files before you believe a
score of such a task.
"""

from __future__ import annotations

from air.tasks.sources.mlgym.checkout import PREFIX, Checkout, Status, find_checkout

__all__ = ["PREFIX", "Checkout", "Status", "find_checkout"]
