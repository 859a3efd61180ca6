"""The command-line programs `air`, `rl` and `sft`; each command has its own Python file."""
