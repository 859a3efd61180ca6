"""What a question makes of its episodes is an answer or none; what else fails is a failure."""

from __future__ import annotations

import pytest

from air.env.chat.harness import PROMPT_TOO_LONG
from air.errors import InfrastructureError
from air.train.coevolve.executor import _answered
from air.train.loop.rollout import Rollout
from air.worlds.proposals.scorer import Answered


def test_a_question_that_leaves_no_room_for_a_reply_has_no_answer() -> None:
    long = Rollout("answers", "posed:x", [], error=f"InferenceError: {PROMPT_TOO_LONG}")
    assert _answered([long, long]) == Answered([None, None], 0.0)
    away = Rollout("answers", "posed:x", [], error="InferenceError: the model server is away")
    with pytest.raises(InfrastructureError, match="is away"):
        _answered([long, away])
