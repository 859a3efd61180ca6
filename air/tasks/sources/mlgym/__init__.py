"""MLGym's tasks, read from the user's own checkout, as tasks of air: `mlgym:<config name>`.

Nothing of MLGym (CC-BY-NC) is in this package. Where the checkout lies is said by `mlgym_root` in a run
file, by `--mlgym-root`, or by `AIR_MLGYM_ROOT`; no file of it is written, and the working directory does
not matter. What upstream lacks or cannot run here is told in one line by `air tasks`.

From the checkout come description, starter code, data, time limits, baseline scores and the evaluation
script, which runs unchanged. From a table of ours (`table.toml`, further entries in the checkout's own
`configs/air.toml`) come what MLGym's files do not say: the primary metric and its direction, the
target, what is graded, which data the agent may see, and what a box of the task needs.

Differences from MLGym, all on purpose:

- The agent's `data/` holds only the files that the table lets through; answers stay with the grader.
- Evaluation happens in a fresh grader box, on the artefact alone, with the checkout's evaluation script.
- There is one evaluation upstream, so both splits mean the same one. Where it is random it is seeded:
  once for validation and otherwise for the test, so that equal artefacts have equal scores. The seed
  follows from the split seed and is no secret: a strategy with a copy of its opponent's generator could
  foresee it. The noise floors in the table keep small luck from being paid.
- A strategy (`strategy.py`) plays in a process of its own; the script sees only its moves.
- The first line of a model's evaluation that begins with `{` is taken upstream, here the last one:
  what the agent's code prints before the script does is not a score.

`trust` says what grading does with the artefact. `data`: it is read. `code`: it runs as a second user
apart from the evaluator. `evaluator`: MLGym's own script imports it, so that a determined agent can
print any score; it still runs as a second user in a box of its own, and a script that was ended early
earns nothing, but no score of such a task should be believed without reading what was submitted.
"""

from __future__ import annotations

from air.tasks.sources.mlgym.checkout import PREFIX, Checkout, Status, find_checkout

__all__ = ["PREFIX", "Checkout", "Status", "find_checkout"]
