"""A small real policy and a real vLLM."""

from __future__ import annotations

from tests.e2e.conftest import small as small
