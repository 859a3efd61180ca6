"""The research world: a task in a box, and the tools with which the agent works in the box."""
