"""Reusable boxes, which serve one user after another.

`resets` restores a box for its next user, `zygote` keeps a Python interpreter started in the box so that
scripts begin sooner, and `settings` tells the box's guest to do so.
"""
