"""Writers of the files that grow with every training step of a run, besides `metrics.jsonl`: `groups.jsonl`
gets new lines, and the folder `tokens/` a new file."""
