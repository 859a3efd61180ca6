"""`make bench-worlds`: the steps per second of worlds, without a model."""
