"""Evaluates models, for `air eval` and during training runs: determines the settings, plays and records
episodes, and reports scores."""
