"""The training loop of the embedded engine (air's own trainer, for one machine): plays episodes, converts
them to samples, trains the policy, and writes metrics and checkpoints."""
