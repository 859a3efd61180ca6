"""Implements the command `air matrix`, which trains one model on each of several lists of tasks, and then
lets every model play all tasks."""
