"""Reads task folders in the format of Harbor (version 0.25 of its Python package)."""
