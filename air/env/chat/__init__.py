"""The harness `air`, a plugin of the library `verifiers`: the loop that calls the model and performs its
actions. It runs in air's own process; only the agent's commands run in the box, the agent's container."""
