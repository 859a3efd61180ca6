"""Runs SQL in separate processes with limits, and provides the tool `sql`."""
