"""Finds and reads tasks: task folders in air's own format or in the format of Harbor (a framework that runs
agents on tasks in containers), and tasks in a checkout of MLGym (a public collection of machine-learning
research tasks)."""
