"""Connects verifiers' runtimes (the places where verifiers runs commands) to air's boxes.

The module `lent` makes a runtime from a box of air. The module `verifiers_owned` makes a box from a runtime
that verifiers itself started.
"""
