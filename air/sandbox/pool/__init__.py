"""Boxes started ahead, and the slots, GPU leases and file locks that bound them."""
