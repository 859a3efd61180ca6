"""The token tree: prefix trees of a training step's samples, so that the model computes a shared prefix
once."""
