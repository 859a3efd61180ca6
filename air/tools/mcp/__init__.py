"""Servers of the Model Context Protocol as tools: programs in the episode's box, or remote ones."""
