"""Inference servers, from which a training run gets the policy's replies: air's own server, and vLLM."""
