"""Reusable boxes, which serve one caller after another.

`resets` restores a box to its first state for the next caller. `prestarted` starts a Python interpreter in
the box in advance, so that scripts begin sooner; `zygote` is the module that runs in this interpreter.
`settings` makes the configuration that switches all of them on in the box's guest.
"""
