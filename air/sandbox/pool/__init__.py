"""A pool of boxes, some started in advance, and the slots, GPU leases and file locks that limit boxes."""
