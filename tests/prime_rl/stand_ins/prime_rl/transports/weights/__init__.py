"""Stands in for prime-rl's `__init__` here, which imports vLLM's CUDA parts; its modules are prime-rl's own."""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)
