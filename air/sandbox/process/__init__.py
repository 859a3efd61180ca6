"""Boxes that are processes of this machine, in namespaces if the kernel allows them."""
