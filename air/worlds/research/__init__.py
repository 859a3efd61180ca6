"""The research world: the environment in which an agent works on a research task, with a shell and tools, in
a box (an isolated place for commands, such as a container), and in which its results are graded."""
