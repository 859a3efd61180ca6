"""The training loop of the embedded engine: plays episodes, converts them to samples, trains the policy, and
writes metrics and checkpoints."""
