"""Lets a person reply in place of a model in an episode, for the command `air shell`."""
