"""Runs episodes in which a program inside the box plays the agent, such as verifiers' `bash` harness."""
