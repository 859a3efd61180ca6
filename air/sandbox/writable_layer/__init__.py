"""Measures what commands write to a container's own layer on the container engine's disk: which files differ
from the image, and how many bytes they have. Used for boxes with the setting `OpenBox.keep`, whose commands
may write everywhere."""
