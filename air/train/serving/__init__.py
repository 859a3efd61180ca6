"""Inference for a run: sampler, scheduler and server."""
