"""Stands in for prime-rl's `__init__`, which imports vLLM's CUDA parts; the modules beside it are its own."""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)
