"""Reads run files: their schema, and the merging of several files and command-line flags."""
