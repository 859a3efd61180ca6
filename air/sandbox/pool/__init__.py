"""The pool of boxes, and what limits the number of boxes: host slots, GPU leases, and the file locks of
both."""
