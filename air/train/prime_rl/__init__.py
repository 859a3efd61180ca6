"""Hands runs over to prime-rl: checks its run files, plans GPUs and throughput, and starts its launcher."""
