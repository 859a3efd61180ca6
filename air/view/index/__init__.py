"""Finds training runs on disk, and keeps an index file of each run's episodes up to date."""
