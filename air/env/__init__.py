"""Connects air to the library `verifiers`, which runs episodes, calls the model and records the conversation.
In an episode, a model as the agent works on one task to its end.

`verifiers` has five kinds of plugins: taskset (the tasks of a run), task, environment (what runs the
episodes), harness (the loop that plays the agent) and runtime (the place where commands run). This package
has plugins of all five kinds.
"""
