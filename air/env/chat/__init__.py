"""The harness `air`: the loop that plays the agent, and calls the model from this process, not from the
box.
"""
