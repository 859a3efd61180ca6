"""The gate for Harbor tasks: checks that the solution is rewarded, and that doing nothing and hacks are not.

`hacks` holds scripts that an agent could try; `scene` lists the files of a task that hacks can use; `plays`
runs a script in the agent's box and grades the result; `check` judges a task; `run` checks many tasks and
writes the verdicts.
"""
