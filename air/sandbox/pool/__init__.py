"""The pool of boxes, and what limits the number of boxes: host slots and GPU leases, and the file locks of
which these consist."""
