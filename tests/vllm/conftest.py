"""A small real policy and a real vLLM."""

from __future__ import annotations

from tests.e2e.test_train import small as small
