"""Provides the tool `sql`, and runs SQL queries in separate processes with limits, also for other parts of
air."""
