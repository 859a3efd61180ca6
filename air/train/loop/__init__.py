"""One run: rollouts, samples, updates, metrics, checkpoints."""
