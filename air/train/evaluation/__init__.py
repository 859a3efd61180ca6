"""Evaluates models: finds the settings, plays and records episodes, and reports scores."""
