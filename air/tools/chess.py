"""The chess tools: the agent plays a game against a scripted opponent. The tools need the package `chess`,
which `pip install 'air-agent[chess]'` installs.

A call that ends the game has the status `finish`, and its `info` contains the agent's `score` (1, 0.5 or
0). The episode's final answer is `win`, `draw` or `loss`; it is computed from the board and not from what
the agent writes. An unfinished game counts as a loss. The episode's seed determines the opponent's moves.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from air.errors import ConfigError, MissingError
from air.tools.base import Reply, Tool, ToolContext, ToolError, finish, tool
from air.tools.load import ToolSettings

if TYPE_CHECKING:
    import chess

Opponent = Literal["random", "greedy"]
_WORDS = {1.0: "win", 0.5: "draw", 0.0: "loss"}
_VALUES = {"p": 1, "n": 3, "b": 3, "r": 5, "q": 9, "k": 0}
_LONGEST_MOVE = 10
_MOST_LISTED = 60


class ChessSettings(ToolSettings):
    """The settings of the chess tools."""

    opponent: Opponent = "random"
    """The scripted opponent. `random` plays a random legal move. `greedy` plays a move that gives checkmate;
    if there is none, a move that wins the most material."""
    fen: str = ""
    """The start position in Forsyth-Edwards notation. The agent plays the side to move. Empty: the standard
    start position."""
    field: str = ""
    """The name of the field of a dataset row that contains the start position of that row's game. It is used
    instead of `fen`. Empty: all games start at `fen`."""
    moves: int = Field(100, ge=1, le=1000)
    """The maximum number of moves of the agent. A game that has not ended after them is a draw."""

    @model_validator(mode="after")
    def _one_position(self) -> ChessSettings:
        if self.fen and self.field:
            raise ValueError("set `fen` or `field`, not both")
        return self

    def tools(self, folder: Path) -> Sequence[Tool]:
        _board(self.fen, "tool 'chess': `fen`")
        state = self._game

        @tool(state=state, outcome=ChessGame.outcome)
        def chess_move(game: ChessGame, move: str) -> Reply:
            """Plays a move on your side; the opponent answers. The end of the game ends the episode.

            Args:
                move: the move, such as e2e4 (UCI) or Nf3 (SAN)
            """
            return game.play(move)

        @tool(state=state)
        def chess_board(game: ChessGame) -> str:
            """Shows the board, with your pieces' side and the position in Forsyth-Edwards notation."""
            return game.shown()

        @tool(state=state)
        def chess_legal_moves(game: ChessGame) -> str:
            """Lists your legal moves."""
            return game.legal()

        return [chess_move, chess_board, chess_legal_moves]

    def _game(self, context: ToolContext) -> ChessGame:
        fen, where = self.fen, "tool 'chess': `fen`"
        if self.field:
            where = f"field `{self.field}` of a row"
            fen = context.fields.get(self.field, "")
            if not isinstance(fen, str) or not fen.strip():
                raise ConfigError("a row has no position", where=where, remedy="write it there")
        return ChessGame(_board(fen, where), self.opponent, self.moves, context.seed)


def _board(fen: str, where: str) -> chess.Board:
    """Returns the board of a position in Forsyth-Edwards notation, or of the start of a game if `fen` is
    empty. Raises ConfigError, whose message names `where` (the origin of `fen`), if the position is invalid
    or the game is already over, and MissingError if the package `chess` is not installed."""
    try:
        import chess
    except ImportError as error:
        remedy = "pip install 'air-agent[chess]'"
        raise MissingError(
            "needs the package chess", where="tool 'chess'", remedy=remedy
        ) from error
    try:
        board = chess.Board(fen) if fen else chess.Board()
    except ValueError as error:
        raise ConfigError(f"is no position: {error}", where=where) from None
    if not board.is_valid():
        raise ConfigError(f"is no possible position: {fen}", where=where)
    if board.outcome(claim_draw=True):
        raise ConfigError(f"the game is over in this position: {fen}", where=where)
    return board


class ChessGame:
    """The chess game of one episode."""

    def __init__(self, board: chess.Board, opponent: Opponent, moves: int, seed: int) -> None:
        self._board = board
        self._side = board.turn
        self._opponent = opponent
        self._left = moves
        self._draw = random.Random(f"chess {seed}")
        self._over = False
        self._score = 0.0

    def outcome(self) -> str:
        """Returns the agent's result: `win`, `draw` or `loss`. An unfinished game is a loss."""
        return _WORDS[self._score]

    def play(self, text: str) -> Reply:
        """Plays the agent's move, and then the opponent's move unless the game is over. Returns the reply for
        the agent, which ends the episode if the game is over. Raises ToolError if `text` is not a legal move
        or the game was over before."""
        if self._over:
            raise ToolError("The game is over.")
        move = self._read(text.strip())
        lines = [f"You play {self._board.san(move)}."]
        self._board.push(move)
        self._left -= 1
        if not self._ended():
            answer = self._answer()
            lines.append(f"The opponent plays {self._board.san(answer)} ({answer.uci()}).")
            self._board.push(answer)
        if self._ended() or not self._left:
            return self._finished(lines)
        check = " You are in check." if self._board.is_check() else ""
        return Reply(f"{' '.join(lines)}{check}\n{self.shown()}")

    def shown(self) -> str:
        """Returns the board as text for the agent, with the agent's side and the position in Forsyth-Edwards
        notation."""
        ranks = str(self._board).splitlines()
        rows = [f"{8 - n} {rank}" for n, rank in enumerate(ranks)]
        side = "White (capital letters)" if self._side else "Black (small letters)"
        return "\n".join([*rows, "  a b c d e f g h", f"You play {side}.", self._board.fen()])

    def legal(self) -> str:
        """Returns the agent's legal moves in standard algebraic notation, such as `Nf3`, sorted and separated
        by spaces. Of a long list, only the beginning and the number of further moves are returned."""
        if self._over:
            return "The game is over."
        names = sorted(self._board.san(move) for move in self._board.legal_moves)
        more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
        return " ".join(names[:_MOST_LISTED]) + more

    def _read(self, text: str) -> chess.Move:
        """Parses a move such as `Nf3` (standard algebraic notation, SAN) or `g1f3` (UCI notation). Raises
        ToolError if the text does not denote exactly one legal move."""
        import chess

        problem = "is no legal move"
        if len(text) <= _LONGEST_MOVE and text.isascii():
            for read, written in (
                (self._board.parse_san, text),
                (self._board.parse_uci, text.lower()),
            ):
                try:
                    move = read(written)
                except chess.AmbiguousMoveError:
                    problem = "can be several moves"
                except ValueError:
                    continue
                else:
                    if move:  # else a null move, such as `--`: both readers take it
                        return move
        raise ToolError(f"{text[:40]!r} {problem}. Your legal moves: {self.legal()}.")

    def _answer(self) -> chess.Move:
        moves = sorted(self._board.legal_moves, key=lambda move: move.uci())
        if self._opponent == "greedy":
            gains = [self._gain(move) for move in moves]
            best = max(gains)
            moves = [move for move, gain in zip(moves, gains, strict=True) if gain == best]
        return self._draw.choice(moves)

    def _gain(self, move: chess.Move) -> int:
        """Returns the value of a move for the opponent that plays greedily: the value of the captured piece
        plus the gain by promotion. Checkmate has the highest value."""
        taken = self._board.piece_at(move.to_square)
        gain = _VALUES[taken.symbol().lower()] if taken else int(self._board.is_en_passant(move))
        if move.promotion:
            gain += {2: 3, 3: 3, 4: 5, 5: 9}[move.promotion] - 1
        self._board.push(move)
        mate = self._board.is_checkmate()
        self._board.pop()
        return 1000 if mate else gain

    def _ended(self) -> bool:
        return self._board.outcome(claim_draw=True) is not None

    def _finished(self, lines: list[str]) -> Reply:
        self._over = True
        outcome = self._board.outcome(claim_draw=True)
        winner = outcome.winner if outcome else None
        score = self._score = 0.5 if winner is None else float(winner == self._side)
        reason = (
            outcome.termination.name.lower().replace("_", " ") if outcome else "no moves are left"
        )
        text = f"{' '.join(lines)}\nThe game is over ({reason}): {_WORDS[score]}."
        info = {"prediction": _WORDS[score], "score": score, "reason": reason}
        return finish(f"{text}\n{self._board.fen()}", **info)
