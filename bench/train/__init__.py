"""`make bench-train`: the speed of training, beside TRL."""
