"""Measures what the commands of a container write to the container's own layer on the engine's disk: which
files, and how many bytes."""
