"""Implements the subcommands of `air` that play, replay, show and convert episodes."""
