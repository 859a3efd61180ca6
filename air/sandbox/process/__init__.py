"""Boxes that are processes of this machine, in namespaces where the kernel allows them."""
