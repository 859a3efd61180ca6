"""Runs episodes in which a program inside the box (the agent's container) plays the agent. The program calls
the model and runs the model's commands; the harness `bash` of the library `verifiers` is an example."""
