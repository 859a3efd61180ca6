"""`make bench-memory`: the memory of one training step."""
