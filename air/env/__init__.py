"""Connects air to the verifiers library, which runs episodes and records what the model saw and wrote.

verifiers calls its plugins taskset, task, environment, harness (the loop that plays the agent) and runtime
(the place where commands run); this package has air's own version of each.
"""
