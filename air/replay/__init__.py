"""Recorded episodes played again, compared, and graded again."""
