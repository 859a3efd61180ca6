"""Converts tasks from air's own format to the formats of other programs, such as Harbor (a framework that
runs agents on tasks in containers)."""
