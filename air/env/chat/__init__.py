"""Plays episodes by calling the model from this process: the harness `air`."""
