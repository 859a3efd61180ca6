"""Reusable boxes, which serve one caller after another.

`resets` restores a box to its first state for the next caller. `zygote` keeps a started Python interpreter
ready in the box, so that scripts begin sooner. `settings` makes the configuration that switches both on in
the box's guest.
"""
