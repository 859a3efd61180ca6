"""The network of a box: an egress proxy on the host, and nothing else."""
