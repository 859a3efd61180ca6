"""Finds training runs on disk, and keeps an index file of each run's recorded episodes up to date, so that
the views need not read all recordings."""
