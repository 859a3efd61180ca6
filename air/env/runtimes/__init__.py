"""Connects verifiers' runtimes with air's boxes: runtimes that air lends, and those that verifiers starts."""
