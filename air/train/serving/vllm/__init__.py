"""vLLM as a process of its own."""
