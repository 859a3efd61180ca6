"""Implements the commands that train a model, evaluate a model, make demonstrations, or compare runs."""
