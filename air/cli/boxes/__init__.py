"""Implements the commands that manage boxes, the sandboxes (usually containers) in which agents work, and
what boxes need: `air box`, `air images`, `air gpus`, `air serve`, `air setup` and `air doctor`."""
