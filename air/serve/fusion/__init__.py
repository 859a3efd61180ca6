"""Serves SandboxFusion's protocol: `/run_code` runs a program, `/run_jupyter` runs notebook cells, and the
dataset endpoints grade completions, which are a model's answers to programming problems."""
