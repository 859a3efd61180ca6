"""The hand-over to prime-rl: its schema, GPU placement and throughput plan."""
