"""Resolves the paths that E2B's clients name. Both the server and the helper program `files` use this module.

Runs also in the sandbox's box (container): standard library only, Python >= 3.8, and no import of `air`.
"""

from __future__ import annotations

import posixpath


def absolute(path: str, home: str) -> str:
    """Converts `path`, a path in a client's request, to an absolute path. A relative path starts at the
    user's home folder `home`, and `~` at the beginning stands for this folder."""
    if path == "~" or path.startswith("~/"):
        path = home + path[1:]
    return posixpath.normpath(posixpath.join(home, path))
