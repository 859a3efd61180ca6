"""Measures what the commands of a container write to the container's own layer (its changes to the image) on
the container engine's disk: which files, and how many bytes."""
