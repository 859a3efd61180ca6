"""Connects air to the verifiers library, which runs episodes and records what the model saw and wrote.

verifiers calls its plugins taskset, task, environment, harness (the loop that plays the agent) and runtime
(the place where commands run). This package supplies air's own version of each. Only `air.env` and
`air.train` import verifiers.
"""
