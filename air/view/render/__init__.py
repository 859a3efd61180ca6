"""Prepares text, numbers, curves and HTML for all views: the app, the exported page and the terminal."""
