"""The tools `bash` and `files` in the episode's box: a shell whose state lasts, and an editor of texts."""

from __future__ import annotations

from air.tools.workbench.settings import BashSettings, FilesSettings

__all__ = ["BashSettings", "FilesSettings"]
