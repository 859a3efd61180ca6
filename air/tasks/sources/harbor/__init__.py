"""Reads and runs tasks in the format of Harbor, a framework that runs agents on tasks in containers (version
0.25 of its Python package)."""
