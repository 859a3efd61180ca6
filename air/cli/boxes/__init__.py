"""Commands about boxes, images, GPUs and this machine."""
