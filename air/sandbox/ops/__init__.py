"""Tools for people who operate boxes: listing boxes, running commands in them, cleanup, command logs, and the
checks of `air doctor`."""
