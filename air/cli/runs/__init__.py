"""Commands that train, evaluate and compare runs."""
