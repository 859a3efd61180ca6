"""Writes tasks of air's own format in the formats of other programs."""
