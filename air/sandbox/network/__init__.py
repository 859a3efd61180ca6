"""Network access of boxes. Commands in a box reach the network only through an egress proxy: an HTTP proxy on
the host that forwards only to allowed hosts. (Exception: process boxes without namespaces use the host's
network directly.)"""
