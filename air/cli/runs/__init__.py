"""The commands that train, evaluate, and compare runs."""
