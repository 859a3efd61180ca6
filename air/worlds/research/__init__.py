"""The research world: an agent works on a task in a box, with a shell and tools, and is graded."""
