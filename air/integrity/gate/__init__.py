"""The gate for Harbor tasks (task folders in the format of the project Harbor): checks that a task is sound,
that is, that it rewards its own solution, and rewards neither doing nothing nor hacks.

`hacks` contains the hacks: scripts that try to earn a reward without doing the work. `recordings` makes
further hacks out of recorded trajectories, and `replays` replays them. `task_files` lists the files of a task
that hacks can use. `plays` runs a task with a function that acts as the agent, and grades the result. `check`
judges one task. `run` checks many tasks and writes the verdicts.
"""
