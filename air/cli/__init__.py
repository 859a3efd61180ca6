"""Implements the command-line programs `air`, `rl` and `sft`; each command of `air` has its own Python
file."""
