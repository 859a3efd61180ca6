"""Evaluates models: which settings a model is played with, what is recorded, and how scores are reported."""
