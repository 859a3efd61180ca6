"""The pool of boxes; and the host slots, GPU leases and file locks that limit how many boxes exist."""
