"""Runs episodes in which a program inside the box plays the agent: it calls the model and runs its commands,
as verifiers' harness `bash` does."""
