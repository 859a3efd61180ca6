"""Implements `air matrix`: trains one model on each of several lists of tasks, and lets every model play all
tasks."""
