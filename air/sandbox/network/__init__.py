"""Network access of boxes. It goes through an egress proxy: an HTTP proxy on the host that forwards only to
allowed hosts. (Process boxes without namespaces use the host's network instead.)"""
