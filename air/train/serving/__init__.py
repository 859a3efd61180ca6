"""Inference servers, which sample the policy's replies during a training run: air's own server, and vLLM."""
