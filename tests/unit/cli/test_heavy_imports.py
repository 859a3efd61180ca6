"""The garbage collector pauses during heavy imports, and works as before afterwards."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from air.cli.heavy_imports import collector_paused

IMPORT = """
import gc, sys
from air.cli.heavy_imports import collector_paused

frozen = gc.get_freeze_count()
with collector_paused():
    assert not gc.isenabled()
    import wave  # any module that nothing has loaded yet
assert gc.isenabled()
assert gc.get_freeze_count() > frozen
not_frozen = [[] for _ in range(10)]
frozen = gc.get_freeze_count()
with collector_paused():
    import wave
assert gc.get_freeze_count() == frozen, "nothing was loaded, yet objects were frozen"
gc.disable()
with collector_paused():
    pass
assert not gc.isenabled(), "a collector that was off is turned on"
"""


def test_what_was_imported_is_looked_at_no_more() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_collector_works_again_after_a_failed_import() -> None:
    assert gc.isenabled()
    with pytest.raises(ModuleNotFoundError), collector_paused():
        import no_such_module_of_air  # type: ignore[import-not-found]  # noqa: F401
    assert gc.isenabled()
