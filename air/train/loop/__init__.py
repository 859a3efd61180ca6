"""The training loop: plays episodes, converts them to samples, trains the policy, writes metrics and
checkpoints."""
