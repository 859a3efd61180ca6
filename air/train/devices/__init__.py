"""Chooses the device (GPU or CPU) on which a run trains its policy, the trained model, and estimates the
memory that the run needs there."""
