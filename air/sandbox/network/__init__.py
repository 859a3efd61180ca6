"""Network access of boxes. It goes only through an egress proxy (an HTTP proxy on the host)."""
