"""The commands that manage boxes: `air box`, `air images`, `air gpus`, `air setup` and `air doctor`."""
