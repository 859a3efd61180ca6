"""Trains on each of several lists of tasks, and plays all tasks with each model: `air matrix`."""
