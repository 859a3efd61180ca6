"""Serves the protocol of SandboxFusion, so that its clients can run code in air's boxes (containers):
`/run_code` runs a program, and `/run_jupyter` runs notebook cells. The dataset endpoints grade completions,
which are a model's answers to programming problems."""
