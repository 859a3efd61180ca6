"""Games as worlds and as gymnasium environments: Sokoban, Tetris and Blocksworld."""

from __future__ import annotations

from air.worlds.games.game import Game, Outcome
from air.worlds.games.source import SOURCE, game_kind
from air.worlds.games.world import GameWorld, Limits

__all__ = ["SOURCE", "Game", "GameWorld", "Limits", "Outcome", "game_kind"]
