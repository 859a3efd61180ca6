"""Measures what the commands of an open box that keeps its image's files (`OpenBox.keep`) write to the
container's own layer on the container engine's disk: which files differ from the image, and how many bytes
they have."""
