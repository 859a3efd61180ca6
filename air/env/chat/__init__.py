"""The harness `air`: the loop that plays the agent and calls the model, in this process, not in the box."""
