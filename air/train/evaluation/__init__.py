"""Evaluates models: determines the settings, plays and records episodes, and reports scores."""
