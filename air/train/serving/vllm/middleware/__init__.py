"""Holds the module that vLLM's server imports as middleware. This folder is vLLM's `PYTHONPATH`."""
