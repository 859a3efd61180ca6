"""Finds and reads tasks: folders in air's own format, and tasks in a checkout of MLGym."""
