"""Finds the known ways in which a training run goes wrong, from the lines of its `metrics.jsonl`."""
