"""Connects air to the verifiers library: taskset, task, environment, harness and runtimes.

Only `air.env` and `air.train` import verifiers.
"""
