"""Solves Sokoban rooms by a breadth-first search from the start.

It shares no code with the room generator, which searches backwards from the solution, so that tests can
check the two against each other.
"""

from __future__ import annotations

_STATES = 500_000


def solve(text: str) -> list[str] | None:
    """Returns the moves of a shortest solution of the room that `text` shows. Returns None if there is no
    solution, or if the search would visit more than half a million states."""
    line = text.index("\n") + 1
    steps = {"Up": -line, "Down": line, "Left": -1, "Right": 1}
    walls = {n for n, symbol in enumerate(text) if symbol in "#\n"}
    targets = frozenset(n for n, symbol in enumerate(text) if symbol in "OS√")
    boxes = frozenset(n for n, symbol in enumerate(text) if symbol in "X√")
    player = next(n for n, symbol in enumerate(text) if symbol in "PS")
    came: dict[tuple[int, frozenset[int]], tuple[tuple[int, frozenset[int]], str] | None]
    came = {(player, boxes): None}
    todo = [(player, boxes)]
    for state in todo:
        here, boxes = state
        if boxes == targets:
            return _way(came, state)
        if len(came) > _STATES:
            return None
        for move, step in steps.items():
            there, moved = here + step, boxes
            if there in walls:
                continue
            if there in boxes:
                if there + step in walls or there + step in boxes:
                    continue
                moved = boxes - {there} | {there + step}
            if (there, moved) not in came:
                came[there, moved] = state, move
                todo.append((there, moved))
    return None


def _way(
    came: dict[tuple[int, frozenset[int]], tuple[tuple[int, frozenset[int]], str] | None],
    state: tuple[int, frozenset[int]],
) -> list[str]:
    moves = []
    while (step := came[state]) is not None:
        state, move = step
        moves.append(move)
    return moves[::-1]
