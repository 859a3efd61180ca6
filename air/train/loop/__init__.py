"""The training loop: plays episodes, makes samples, trains the policy, writes metrics and checkpoints."""
