"""The speed of `air view`."""
