"""The harness `air`: the loop that calls the model and performs its actions, in air's own process and not in
the box."""
