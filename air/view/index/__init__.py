"""Finds runs on disk and keeps an index of the episodes of each."""
