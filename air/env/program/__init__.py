"""Runs episodes in which a program inside the box plays the agent: the program calls the model and runs the
model's commands, as verifiers' harness `bash` does."""
