"""What a box promises, whichever provider (`docker` or `process`) implements it.

The interface `Box` with its settings, shells in boxes, the owners of boxes, and network rules.
"""
