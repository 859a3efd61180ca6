"""The device that a run trains on: its choice, and the memory that the run needs there."""
