"""Chooses the device that a run trains on, and estimates the memory that the run needs there."""
