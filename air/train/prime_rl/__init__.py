"""The training engine `prime-rl`: air checks the run file, plans GPUs and throughput, and starts prime-rl."""
