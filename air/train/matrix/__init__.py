"""Implements `air matrix`: trains a model on each of several lists of tasks; each model plays all tasks."""
