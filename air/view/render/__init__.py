"""Prepares text, numbers, curves and HTML for all views of the trajectory viewer: the app, the exported page
and the terminal."""
