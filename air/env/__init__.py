"""Connects air to the library verifiers, which runs episodes, calls the model and records the conversation.

verifiers has five kinds of plugins: taskset, task, environment, harness (the loop that plays the agent) and
runtime (the place where commands run). This package implements each of them for air.
"""
