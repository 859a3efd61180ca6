"""MkDocs hooks: the pages of the reference are generated, not committed."""

from __future__ import annotations

from typing import Any

from mkdocs.structure.files import File, Files
from reference import PAGES


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Adds the generated pages below `reference/`."""
    for name, make in PAGES.items():
        files.append(File.generated(config, f"reference/{name}", content=make()))
    return files
