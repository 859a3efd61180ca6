"""Tools for people who operate boxes: listing, attaching, cleanup, command logs, `air doctor`."""
