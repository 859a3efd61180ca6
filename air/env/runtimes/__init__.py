"""Connects verifiers' runtimes (the places where verifiers runs commands) to air's boxes.

`lent` makes a runtime from a box; `verifiers_owned` makes a box from a runtime that verifiers started.
"""
