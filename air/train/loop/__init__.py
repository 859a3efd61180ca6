"""One training run: plays rollouts, makes samples, updates the policy, writes metrics and checkpoints."""
