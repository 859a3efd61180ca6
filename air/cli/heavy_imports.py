"""Pauses the garbage collector during imports of heavy packages.

torch, transformers and verifiers create about a million objects when they are imported. Python's garbage
collector would look at all of them several times during the imports and once more at exit, and would free
nothing. This is a third of the imports' CPU time.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Context manager: the garbage collector does not run during the `with` block, which should contain only
    imports. If these load at least one module, all objects that exist after them are exempt from later
    collections, because modules live as long as the process. Restores the collector, also after an error."""
    enabled, before = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
        if len(sys.modules) > before:
            gc.freeze()
    finally:
        if enabled:
            gc.enable()
