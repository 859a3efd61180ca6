"""Finds an installed vLLM, and runs it as a separate process that serves the policy (the trained model)."""
