"""Finds and reads tasks: folders in air's own format or Harbor's, and tasks in a checkout of MLGym."""
