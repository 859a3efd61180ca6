"""Lets a person play an episode in place of a model, for the command `air shell`."""
