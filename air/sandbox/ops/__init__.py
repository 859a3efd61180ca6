"""What operates boxes: listing, attaching, cleaning up, logs, `air doctor`."""
