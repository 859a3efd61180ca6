"""The network of a box: an egress proxy, and nothing else."""
