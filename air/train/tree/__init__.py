"""Token trees: prefix trees of a training step's samples, in which the model computes a shared prefix
once."""
