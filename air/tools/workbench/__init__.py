"""The tools `bash` and `files` in the episode's box (sandbox): a shell whose state persists between calls,
and a text editor."""

from __future__ import annotations

from air.tools.workbench.tool import BashSettings, FilesSettings

__all__ = ["BashSettings", "FilesSettings"]
