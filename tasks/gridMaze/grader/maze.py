"""The rules: a maze drawn from a seed, and a walker who sees only what lies near.

    maze = Maze(7)
    while not maze.over:
        maze.step(act(maze.observe()))
    print(maze.score)

An observation is a dict:

view     five strings of five characters, north at the top, the walker in the middle: `#` wall (also
         all that lies outside), `.` floor, `~` mud, `G` the goal
compass  where the goal lies, as seen from the walker: N, NE, E, SE, S, SW, W or NW
moved    whether the last action changed the walker's place
left     time units left

Actions: 0 north, 1 east, 2 south, 3 west. An action takes one unit, a step into mud three. A step into a
wall goes nowhere, and so does any step with chance SLIP. The score is 1 - 0.9 * (time used / LIMIT) at the
goal, and 0 when time runs out before.
"""

import random

SIZE = 15
VIEW = 2
LIMIT = 120
SLIP = 0.1
MUD_TIME = 3
MOVES = ((0, -1), (1, 0), (0, 1), (-1, 0))


class Maze:
    """One maze and one walk through it."""

    def __init__(self, seed):
        rng = random.Random(seed)
        self.cells = carve(rng)
        free = sorted(self.cells)
        for cell in rng.sample(free, len(free) // 6):
            self.cells[cell] = "~"
        self.goal = rng.choice(free)
        away = distances(self.cells, self.goal)
        self.here = rng.choice([cell for cell in free if away[cell] >= 10])
        self.cells[self.goal] = "G"
        self.luck = random.Random(rng.getrandbits(64))
        self.time, self.moved = 0, False

    @property
    def over(self):
        return self.here == self.goal or self.time >= LIMIT

    @property
    def score(self):
        reached = self.here == self.goal and self.time <= LIMIT
        return 1 - 0.9 * self.time / LIMIT if reached else 0.0

    def observe(self):
        x, y = self.here
        near = range(-VIEW, VIEW + 1)
        view = ["".join(self.cells.get((x + dx, y + dy), "#") for dx in near) for dy in near]
        toward = compass(self.goal[0] - x, self.goal[1] - y)
        return {"view": view, "compass": toward, "moved": self.moved, "left": LIMIT - self.time}

    def step(self, action):
        dx, dy = MOVES[action]
        there = (self.here[0] + dx, self.here[1] + dy)
        slipped = self.luck.random() < SLIP
        self.moved = there in self.cells and not slipped
        self.time += MUD_TIME if self.moved and self.cells[there] == "~" else 1
        if self.moved:
            self.here = there


def compass(dx, dy):
    """The direction of an offset, y pointing south; beside an axis by less than half counts as along it."""
    if 2 * abs(dy) <= abs(dx):
        return "E" if dx > 0 else "W"
    if 2 * abs(dx) <= abs(dy):
        return "S" if dy > 0 else "N"
    return ("S" if dy > 0 else "N") + ("E" if dx > 0 else "W")


def carve(rng):
    """Free cells: passages by a random depth-first walk, then some walls taken out, which makes loops."""
    cells, trail = {(1, 1): "."}, [(1, 1)]
    while trail:
        x, y = trail[-1]
        ways = [
            (dx, dy)
            for dx, dy in MOVES
            if 0 < x + 2 * dx < SIZE
            and 0 < y + 2 * dy < SIZE
            and (x + 2 * dx, y + 2 * dy) not in cells
        ]
        if not ways:
            trail.pop()
            continue
        dx, dy = rng.choice(ways)
        cells[x + dx, y + dy] = cells[x + 2 * dx, y + 2 * dy] = "."
        trail.append((x + 2 * dx, y + 2 * dy))
    inside = range(1, SIZE - 1)
    walls = [(x, y) for x in inside for y in inside if (x, y) not in cells and (x + y) % 2]
    for cell in rng.sample(walls, len(walls) // 4):
        cells[cell] = "."
    return cells


def distances(cells, start):
    """Steps from a free cell to every other."""
    found, queue = {start: 0}, [start]
    for x, y in queue:
        for dx, dy in MOVES:
            there = (x + dx, y + dy)
            if there in cells and there not in found:
                found[there] = found[x, y] + 1
                queue.append(there)
    return found
