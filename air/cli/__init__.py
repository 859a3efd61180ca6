"""The commands `air`, `rl` and `sft`: one file a command."""
