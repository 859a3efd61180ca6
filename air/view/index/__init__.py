"""Runs on disk, and an index over their episodes."""
