"""The commands about boxes: `air box`, `images`, `gpus`, `setup` and `doctor`."""
