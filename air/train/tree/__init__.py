"""Token trees: prefix trees of a training step's samples (conversations). A prefix that several samples share
is stored once, and the model computes it once."""
