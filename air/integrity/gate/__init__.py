"""The gate for Harbor tasks (tasks in the format of the benchmark tool Harbor), which decides whether a task
is fit for training: checks that it rewards its own solution, and rewards neither doing nothing nor hacks.

`hacks` contains scripts that an agent could try. `task_files` lists the files of a task that hacks can use.
`plays` runs a script in the agent's box and grades the result. `check` judges one task. `run` checks many
tasks and writes the verdicts.
"""
