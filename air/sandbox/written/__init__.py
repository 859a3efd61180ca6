"""Measures what the commands of a container write to its own layer on the engine's disk: which files, and how
much."""
