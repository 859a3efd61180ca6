"""The tokens of a turn: found in the run's folder, and shown with their numbers and with what paid."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from air.trajectories import trained_tokens
from air.trajectories.trained_tokens import Conversation, Message, Payment, StepTokens
from air.view.index.facts import Place
from air.view.index.turn_tokens import TurnTokens, of_turn
from air.view.render import token_markup

PIECES = {1: "system", 2: "<|assistant|>", 3: "<b>try</b>", 4: " it\n", 5: "output", 6: "again"}
STEP: dict[str, Any] = {"turn": 2, "tokens": {"nodes": [2, 4]}}


def message(*tokens: tuple[int, float | None], advantage: float = 0.25) -> Message:
    """A message of these tokens; one with a log-probability is sampled. The trainer's is 0.1 higher."""
    drawn = np.array([logprob for _, logprob in tokens if logprob is not None], np.float32)
    return Message(
        np.array([token for token, _ in tokens], np.int32),
        np.array([logprob is not None for _, logprob in tokens]),
        drawn,
        drawn + np.float32(0.1) if advantage else np.full_like(drawn, np.nan),
        np.full_like(drawn, advantage),
        (0, 2) if len(drawn) else None,
    )


def content(*, advantage: float = 0.25, shuffled: bool = False) -> StepTokens:
    messages = (
        message((1, None)),
        message((2, None), (3, -0.5), advantage=advantage),
        message((5, None), (5, None)),
        message((2, None), (3, -2.0), (4, -0.25), advantage=advantage),
    )
    payments = (Payment(1, 1, {"delta": 0.5}), Payment(2, None, {"format": -0.125}))
    conversation = Conversation("e", "trace", "titanic", 0, messages, payments)
    return StepTokens(7, 1.0, shuffled, (conversation,), PIECES)


def tokens_of(run: Path, **changes: Any) -> TurnTokens:
    trained_tokens.write(run, content(**changes))
    tokens = of_turn(run, "e", 7, {"trace": "trace"}, STEP)
    assert isinstance(tokens, TurnTokens)
    return tokens


@pytest.mark.parametrize("step", [STEP, {"turn": 2, "tokens": None}])
def test_a_turn_has_its_reply_the_masked_tokens_before_it_and_its_payments(
    tmp_path: Path, step: dict[str, Any]
) -> None:
    trained_tokens.write(tmp_path, content())
    tokens = of_turn(tmp_path, "e", 7, {"trace": "trace"}, step)
    assert isinstance(tokens, TurnTokens)
    assert tokens.reply.token_ids.tolist() == [2, 3, 4]
    assert [m.token_ids.tolist() for m in tokens.context] == [[5, 5]]
    assert [p.terms for p in tokens.payments] == [{"delta": 0.5}, {"format": -0.125}]


def test_why_a_turn_has_no_tokens_is_said(tmp_path: Path) -> None:
    def reason(*, step: int | None = 7, name: str = "e", turn: dict[str, Any] = STEP) -> str:
        answer = of_turn(tmp_path, name, step, {}, turn)
        assert isinstance(answer, str)
        return answer

    assert "prime-rl does not" in reason()
    trained_tokens.write(tmp_path, content())
    assert "No training step" in reason(step=None)
    assert "step 6 are not kept: embedded.record_tokens_mb" in reason(step=6)
    assert "failed" in reason(name="another")
    assert "do not include this turn" in reason(turn={"turn": 9})


def test_a_file_that_was_written_anew_is_read_anew(tmp_path: Path) -> None:
    assert tokens_of(tmp_path).reply.advantages[0] == 0.25
    path = trained_tokens.file_of(tmp_path, 7)
    trained_tokens.write(tmp_path, content(advantage=-0.5))
    os.utime(path, ns=(1, 1))
    answer = of_turn(tmp_path, "e", 7, {}, STEP)
    assert isinstance(answer, TurnTokens)
    assert answer.reply.advantages[0] == -0.5
    path.write_bytes(b"no archive")
    damaged = of_turn(tmp_path, "e", 7, {}, STEP)
    assert isinstance(damaged, str)
    assert f"{path}: is damaged" in damaged


def test_each_token_is_shown_with_its_numbers_and_what_paid(tmp_path: Path) -> None:
    graded = Place(0, "validate", 0, 0, 0, 1, 0, 0.8125, None, 0.5)
    page = token_markup.turn(tokens_of(tmp_path), [graded])
    assert "2 sampled" in page
    assert "2 trained" in page
    assert "3 masked" in page
    assert "delta +0.5 (validate 1, turn 1, score 0.8125)" in page
    assert "format −0.125 (turn 2)" in page
    assert "+0.375" in page
    # exp(0.1) is the ratio of each token
    assert "log p −2 · trainer −1.9 · ratio 1.1052 · advantage +0.25 · id 3" in page
    assert '<span class="masked" title="masked: not trained">&lt;|assistant|&gt;</span>' in page
    assert "&lt;b&gt;try&lt;/b&gt;" in page
    assert "<b>try" not in page


def test_tokens_without_a_part_in_the_loss_are_named(tmp_path: Path) -> None:
    page = token_markup.turn(tokens_of(tmp_path, advantage=0.0), [])
    assert "0 trained" in page
    assert "ratio –" in page
    assert "not trained</td>" in page
    shuffled = token_markup.turn(tokens_of(tmp_path / "other", shuffled=True), [])
    assert "The rewards were shuffled" in shuffled
