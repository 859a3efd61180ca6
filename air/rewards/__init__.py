"""Pure reward functions: from scores to what a validate earns. Knows nothing of boxes or tasks."""
