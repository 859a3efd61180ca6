"""Inference servers of a training run: air's own (sampler, scheduler, HTTP server) and vLLM."""
