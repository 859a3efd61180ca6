"""The files of a run that get new lines or a new file with every training step, besides `metrics.jsonl`."""
