"""The research world: a box, a task, and the tools that act in it."""
