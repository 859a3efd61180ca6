"""Connects the runtimes of the library `verifiers` (the places where it runs commands) to air's boxes
(containers or processes in which air runs commands).

`lent` makes a runtime from a box of air; `verifiers_owned` makes a box from a runtime that `verifiers`
started. `no_box` is the runtime for episodes without a box, such as games. `archive` parses tar archives.
"""
