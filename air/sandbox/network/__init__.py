"""Network access of boxes, which always goes through an egress proxy: an HTTP proxy on the host that forwards
only to allowed hosts."""
