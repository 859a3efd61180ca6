"""Runs vLLM as a separate process that serves the policy."""
