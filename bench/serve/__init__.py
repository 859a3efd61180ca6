"""`make bench-serve`: the speed of `air serve sandbox`, beside SandboxFusion."""
