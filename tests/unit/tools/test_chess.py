"""The tools of chess."""

from __future__ import annotations

import random
from typing import Any

import chess
import pytest

from air.errors import ConfigError
from air.tools import OpenTools, ToolContext, ToolSet, load

MATE_IN_ONE = "6k1/5ppp/8/8/8/8/8/R3K3 w - - 0 1"
QUEEN_HANGS = "4k3/8/8/3p4/8/8/8/3QK3 w - - 0 1"


async def opened(seed: int = 0, fields: dict[str, Any] | None = None, **settings: Any) -> OpenTools:
    tools = ToolSet(load({"name": "chess", **settings}))
    return await tools.open(ToolContext(seed=seed, fields=fields or {}))


async def test_a_move_is_answered() -> None:
    async with await opened() as tools:
        legal = (await tools.call("chess_legal_moves", {})).observation.split()
        assert (len(legal), legal[0]) == (20, "Na3")
        result = await tools.call("chess_move", {"move": "e2e4"})
        assert result.status == "success"
        assert result.observation.startswith("You play e4. The opponent plays ")
        assert "\n4 . . . . P . . ." in result.observation
        board = await tools.call("chess_board", {})
        assert result.observation.endswith(board.observation)
        assert board.observation.splitlines()[-2] == "You play White (capital letters)."
        assert (await tools.call("chess_move", {"move": " Nf3 "})).status == "success"


async def test_a_mate_wins_and_ends_the_episode() -> None:
    for move in ("Ra8#", "Ra8", "a1a8", "A1A8"):
        async with await opened(fen=MATE_IN_ONE) as tools:
            result = await tools.call("chess_move", {"move": move})
            assert (result.status, result.prediction) == ("finish", "win")
            assert result.info == {"prediction": "win", "score": 1.0, "reason": "checkmate"}
            again = await tools.call("chess_move", {"move": "Kd1"})
            assert (again.status, again.observation) == ("error", "The game is over.")


async def test_a_loss_and_a_draw() -> None:
    async with await opened(fen="8/8/8/8/8/6k1/r7/6K1 w - - 0 1", opponent="greedy") as tools:
        result = await tools.call("chess_move", {"move": "Kh1"})
        assert (result.status, result.prediction, result.info["score"]) == ("finish", "loss", 0.0)
    async with await opened(moves=1) as tools:
        result = await tools.call("chess_move", {"move": "d4"})
        assert (result.status, result.prediction) == ("finish", "draw")
        assert "no moves are left" in result.observation
    async with await opened(fen="7k/5K2/8/6Q1/8/8/8/8 w - - 0 1") as tools:
        result = await tools.call("chess_move", {"move": "Qg6"})
        assert (result.status, result.prediction, result.info["reason"]) == (
            "finish",
            "draw",
            "stalemate",
        )


@pytest.mark.parametrize(
    "move",
    [
        "",
        "e5",
        "e2e5",
        "0000",
        "--",
        "Z0",
        "O-O",
        "Nd2",
        "e4 e5",
        "x" * 100_000,
        "ｅ２ｅ４",
        "e2e4\x00",
        "N" * 10,
    ],
)
async def test_what_is_no_legal_move_is_told(move: str) -> None:
    async with await opened() as tools:
        before = (await tools.call("chess_board", {})).observation
        result = await tools.call("chess_move", {"move": move})
        assert result.status == "error"
        assert "Your legal moves: Na3 Nc3 Nf3" in result.observation
        assert len(result.observation) < 400
        assert (await tools.call("chess_board", {})).observation == before


async def test_an_ambiguous_move_is_told() -> None:
    async with await opened(fen="R6R/8/8/8/8/8/K5k1/8 w - - 0 1") as tools:
        result = await tools.call("chess_move", {"move": "Rd8"})
        assert "'Rd8' can be several moves" in result.observation


async def test_the_greedy_opponent_takes_the_queen() -> None:
    async with await opened(fen=QUEEN_HANGS, opponent="greedy") as tools:
        result = await tools.call("chess_move", {"move": "Qe2+"})
        assert result.status == "success"
    async with await opened(fen="4k3/8/8/3p4/8/8/8/2Q1K3 w - - 0 1", opponent="greedy") as tools:
        result = await tools.call("chess_move", {"move": "Qc4"})
        assert "The opponent plays dxc4 (d5c4)" in result.observation


async def played(seed: int, opponent: str) -> tuple[list[str], str]:
    """Plays random moves to the end of the game."""
    draw, observations = random.Random(3), []
    async with await opened(seed, opponent=opponent) as tools:
        while True:
            moves = (await tools.call("chess_legal_moves", {})).observation.split()
            result = await tools.call("chess_move", {"move": draw.choice(moves)})
            observations.append(result.observation)
            if result.status == "finish":
                return observations, result.prediction
            assert result.status == "success"


@pytest.mark.parametrize("opponent", ["random", "greedy"])
async def test_the_same_seed_and_moves_give_the_same_game(opponent: str) -> None:
    first = await played(1, opponent)
    assert first == await played(1, opponent)
    assert first != await played(2, opponent)
    assert first[1] in ("win", "draw", "loss")


async def test_each_row_has_its_position() -> None:
    async with await opened(fields={"position": MATE_IN_ONE}, field="position") as tools:
        board = (await tools.call("chess_board", {})).observation
        assert board.endswith(chess.Board(MATE_IN_ONE).fen())
    with pytest.raises(ConfigError, match="field `position` of a row: a row has no position"):
        await opened(field="position")
    with pytest.raises(ConfigError, match="field `position` of a row: is no position"):
        await opened(fields={"position": "x"}, field="position")


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"opponent": "deep"}, "`opponent`"),
        ({"fen": "x"}, "is no position"),
        ({"fen": "8/8/8/8/8/8/8/8 w - - 0 1"}, "no possible position"),
        ({"fen": "R5k1/5ppp/8/8/8/8/8/4K3 b - - 0 1"}, "the game is over"),
        ({"fen": MATE_IN_ONE, "field": "fen"}, "not both"),
        ({"moves": 0}, "`moves`"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], part: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load({"name": "chess", **settings})
    assert part in str(raised.value)
