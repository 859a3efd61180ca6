"""Network access of boxes, which goes only through an egress proxy (an HTTP proxy on the host)."""
