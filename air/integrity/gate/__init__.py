"""The gate for Harbor tasks: is the solution paid, doing nothing not, and no hack more than doing nothing?

`hacks` holds what an agent could try, as scripts; `scene` says what they can use of a task; `plays` plays a
script in the agent's box and grades what comes of it; `check` judges a task; `report` writes the verdicts.
"""
