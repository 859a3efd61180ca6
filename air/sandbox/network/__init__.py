"""Network access of boxes. Commands in a box reach the network only through an egress proxy: an HTTP proxy on
the host that forwards only to allowed hosts. (Exception: process boxes, which have no container, use the
host's network directly if they have no Linux namespaces.)"""
