"""The games Sokoban, Tetris and Blocksworld, as worlds (environments for language-model agents) and as
gymnasium environments (for other learners)."""

from __future__ import annotations

from air.worlds.games.game import Game, Outcome
from air.worlds.games.source import SOURCE, game_kind
from air.worlds.games.world import GameWorld, Limits

__all__ = ["SOURCE", "Game", "GameWorld", "Limits", "Outcome", "game_kind"]
