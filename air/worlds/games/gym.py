"""Games as gymnasium environments, for learners that are not language models. Needs the package's optional
dependencies `games`.

    env = gymnasium.make("air.worlds.games.gym:air/Game-v0", name="sokoban6")

An action is the index of a move in `game.moves`. An observation is the game's grid of small integers.
`reset(seed=7)` starts the same episode as seed 7 of the task `game:sokoban6` for language models. The rewards
are the game's own. An episode is truncated at its maximum number of moves.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from air.worlds.games.source import game_kind
from air.worlds.sources import VALIDATION_SEED

Grid = NDArray[np.uint8]
ID = "air/Game-v0"


class GameEnv(gymnasium.Env[Grid, np.int64]):
    """A game as a gymnasium environment. `name` is a game's name, such as `sokoban6-level2`. `render_mode` is
    `ansi` (`render` returns the board as text) or None."""

    metadata = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012 (as gymnasium has it)

    def __init__(self, name: str = "sokoban6", render_mode: str | None = None) -> None:
        kind = game_kind(name)
        self.game = kind.make()
        self.render_mode = render_mode
        self._total = kind.limits.total
        self._played = 0
        self.game.reset(0)
        shape = np.array(self.game.grid()).shape
        self.action_space = gymnasium.spaces.Discrete(len(self.game.moves))
        self.observation_space = gymnasium.spaces.Box(0, 9, shape, np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Grid, dict[str, Any]]:
        """Starts the episode of a seed; without a seed, of a random training seed. Returns the grid, and a
        dict whose key `shortest` holds the number of moves of the shortest solution (None in Tetris)."""
        super().reset(seed=seed)
        self.game.reset(int(self.np_random.integers(VALIDATION_SEED)) if seed is None else seed)
        self._played = 0
        return self._grid(), {"shortest": self.game.shortest()}

    def step(self, action: np.int64) -> tuple[Grid, float, bool, bool, dict[str, Any]]:
        """Plays the move with the index `action` in `game.moves`. Returns the grid, the reward, whether the
        game is over, whether the maximum number of moves was reached before the game was over, and a dict
        with `success`, `action_is_valid` and `action_is_effective`. Raises RuntimeError if the game was over
        before the move."""
        outcome = self.game.step(self.game.moves[action])
        self._played += 1
        info = {
            "success": self.game.won,
            "action_is_valid": outcome.valid,
            "action_is_effective": outcome.effective,
        }
        truncated = self._played >= self._total and not self.game.over
        return self._grid(), outcome.reward, self.game.over, truncated, info

    def render(self) -> str | None:
        """Returns the board as text if `render_mode` is "ansi", else None."""
        return self.game.text() if self.render_mode == "ansi" else None

    def _grid(self) -> Grid:
        return np.array(self.game.grid(), dtype=np.uint8)


gymnasium.register(ID, entry_point=GameEnv)
