"""Makes the tasks of MLGym (a public collection of machine-learning research tasks) available, from the
user's own checkout of its repository, under the ids `mlgym:<config name>`.

This package contains nothing from MLGym (licence CC-BY-NC), and never changes the checkout. The checkout
provides descriptions, starter code, data, time limits, baseline scores and evaluation scripts. Air's
`table.toml`, and the optional file `configs/air.toml` in the checkout, provide what MLGym lacks: primary
metric, target, artefact (the files to grade), the names of the data files that the agent may see, and the
resources of a box (sandbox).

Intended differences from MLGym:

- The agent's folder `data/` contains only the files that `table.toml` allows. Only the grader gets the
  answers.
- Only the artefact is evaluated, in a fresh grader box, with the checkout's evaluation script.
- MLGym has one evaluation, so air uses it for the validation and for the test split. If the evaluation is
  random, its random numbers are computed from a fixed key for each split, so that equal artefacts get equal
  scores. The key is computed from the split seed, which is secret in episodes. In a game, a strategy can
  compute neither the key nor later random numbers from the moves of its opponents. The noise floors in
  `table.toml` prevent rewards for small random gains.
- If the evaluation script does no more with the artefact than call one function (the strategy of a player in
  a game, the heuristic of `3SATTime`), this function does not run in the script's process. Air's runner calls
  it in a process of its own, with limits and a public seed, and passes only what it returns to the script. It
  may use a tenth of MLGym's time limit as processor time. If it fails once it has been called, the agent
  reads only the kind of error.
- The score of `3SATTime` is the number of decisions, which its script prints, too, instead of the time.
- For the evaluation of a model, MLGym takes the first output line that begins with `{` as the score. Air
  takes the last one, because the agent's code can print such lines before the script prints the score.
"""

from __future__ import annotations

from air.tasks.sources.mlgym.checkout import PREFIX, Checkout, Status, find_checkout

__all__ = ["PREFIX", "Checkout", "Status", "find_checkout"]
