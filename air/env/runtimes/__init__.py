"""Connects verifiers' runtimes (the places where verifiers runs commands) to air's boxes.

`lent` makes a runtime from a box of air; `verifiers_owned` makes a box from a runtime that verifiers started;
`no_box` is the runtime of worlds without a box.
"""
