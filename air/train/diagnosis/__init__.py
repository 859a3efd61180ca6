"""Finds the known ways in which a training run goes wrong, from the lines of its `metrics.jsonl`. The command
`air doctor RUN` shows the findings."""
