"""Tools for people who operate boxes (isolated places to run commands): listing boxes, running commands in
them, cleanup, command logs, and the checks of `air doctor`."""
