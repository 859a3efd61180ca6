"""The in-process harness `air`."""
