"""Writes policy.py, which walks through mazes unseen: act(observation) -> 0..3 (see maze.py).

Options are read from the file `config`, one line such as `method=2 level=3`:

method  1 plan: draws a map, goes the cheapest way to where the unknown begins, later to the goal
        2 walk at random, straight on in 0, 50, 75 or 90 % of the steps (level 1, 2, 3, 4)
        3 Q-learning on the training mazes
        4 follow the compass, or step at random in 60, 40, 25 or 10 % of the steps
level   of 1: places are chosen by 1 nearness 2 nearness, mud counted 3 the compass 4 all compasses so far
        of 3: the walker knows 1 walls 2 compass too 3 and its last step 4 and where it has been instead
"""

import json
import random
import sys

from maze import Maze, distances

HEAD = '"""Written by solve.py: method {method}, level {level}."""\n\n'
WALK = """import random

last = 0


def act(observation):
    global last
    if not observation["moved"] or random.random() >= {on}:
        last = random.randrange(4)
    return last
"""
COMPASS = """import random

TOWARD = {{"N": (0,), "E": (1,), "S": (2,), "W": (3,)}}
TOWARD |= {{a + b: TOWARD[a] + TOWARD[b] for a in "NS" for b in "EW"}}


def act(observation):
    view = observation["view"]
    beside = (view[1][2], view[2][3], view[3][2], view[2][1])
    ways = [way for way in TOWARD[observation["compass"]] if beside[way] != "#"]
    if not ways or random.random() < {astray}:
        ways = [way for way in range(4) if beside[way] != "#"]
    return random.choice(ways)
"""
LEARNT = """import random

LEVEL = {level}
MOVES = ((0, -1), (1, 0), (0, 1), (-1, 0))
here, last, been = (0, 0), 4, {{(0, 0): 1}}


def look(observation):
    \"\"\"What is known, as a key of the table, having followed the last step.\"\"\"
    global here
    view = observation["view"]
    beside = (view[1][2], view[2][3], view[3][2], view[2][1])
    key = "".join("01"[cell == "#"] for cell in beside)
    if LEVEL > 1:
        key += observation["compass"]
    if LEVEL == 3:
        key += str(last)
    if observation["moved"] and last < 4:
        here = (here[0] + MOVES[last][0], here[1] + MOVES[last][1])
        been[here] = been.get(here, 0) + 1
    if LEVEL > 3:
        visits = [been.get((here[0] + dx, here[1] + dy), 0) for dx, dy in MOVES]
        least = min(visits[way] for way in open_ways(key))
        key += "".join("01"[n > least] for n in visits)
    return key


def open_ways(key):
    return [way for way in range(4) if key[way] == "0"]


def act(observation):
    global last
    key = look(observation)
    values, ways = TABLE.get(key, (0, 0, 0, 0)), open_ways(key)
    last = max(ways, key=values.__getitem__)
    if random.random() < 0.1:  # what looks the same twice would else be walked in circles
        last = random.choice(ways)
    return last
"""
PLAN = """from heapq import heappop, heappush

LEVEL = {level}
WEIGHT = 1
MOVES = ((0, -1), (1, 0), (0, 1), (-1, 0))
TOWARD = {{"N": (0, -1), "E": (1, 0), "S": (0, 1), "W": (-1, 0)}}
TOWARD |= {{a + b: (TOWARD[b][0], TOWARD[a][1]) for a in "NS" for b in "EW"}}
REACH = range(-12, 13)
here, last, known, goal, aim = (0, 0), None, {{}}, None, None
goals = [(x, y) for x in REACH for y in REACH]


def look(observation):
    \"\"\"Follows the last step and draws what is seen into the map.\"\"\"
    global here, goal, goals
    if last is not None and observation["moved"]:
        here = (here[0] + MOVES[last][0], here[1] + MOVES[last][1])
    for y, row in enumerate(observation["view"], here[1] - 2):
        for x, cell in enumerate(row, here[0] - 2):
            known[x, y] = cell
            if cell == "G":
                goal = (x, y)
    toward = TOWARD[observation["compass"]]
    if LEVEL < 4:
        goals = [(here[0] + dx, here[1] + dy) for dx in REACH for dy in REACH]
    goals = [(x, y) for x, y in goals if octant(x - here[0], y - here[1]) == toward]
    goals = [spot for spot in goals if spot not in known] if goal is None else [goal]


def octant(dx, dy):
    east, south = (dx > 0) - (dx < 0), (dy > 0) - (dy < 0)
    if 2 * abs(dy) <= abs(dx):
        return (east, 0)
    if 2 * abs(dx) <= abs(dy):
        return (0, south)
    return (east, south)


def far(spot):
    \"\"\"How far from the goal a place seems to be: the mean over all places where it may lie.\"\"\"
    if LEVEL < 3 or not goals:
        return 0
    return WEIGHT * sum(abs(x - spot[0]) + abs(y - spot[1]) for x, y in goals) / len(goals)


def act(observation):
    global last, aim
    look(observation)
    best, queue, seen = (float("inf"), 0, None), [(0, here, None)], set()
    while queue:
        cost, spot, first = heappop(queue)
        if spot in seen:
            continue
        seen.add(spot)
        if spot == goal:
            best = (cost, first, spot)
        if cost - 3 >= best[0]:
            break
        around = [(spot[0] + dx, spot[1] + dy) for dx, dy in MOVES]
        if first is not None and any(cell not in known for cell in around):
            keep = 3 if spot == aim else 0
            best = min(best, (cost + far(spot) - keep, first, spot))
        for way, cell in enumerate(around):
            kind = known.get(cell, "#")
            if kind != "#" and cell not in seen:
                time = 3 if kind == "~" and LEVEL > 1 else 1
                heappush(queue, (cost + time, cell, way if first is None else first))
    _, last, aim = best
    return last
"""


def options():
    """The two options of `config`, or exit 1."""
    try:
        with open("config") as file:
            pairs = dict(part.split("=") for part in file.read().split())
    except (OSError, ValueError):
        sys.exit("config: expected one line such as: method=2 level=3")
    for name, value in pairs.items():
        if name not in ("method", "level") or value not in ("1", "2", "3", "4"):
            sys.exit(f"config: {name}={value} is unknown; method=1..4 level=1..4")
    if len(pairs) != 2:
        sys.exit("config: both method=1..4 and level=1..4 are needed")
    return int(pairs["method"]), int(pairs["level"])


def learn(code, rounds=6, rate=0.05, ahead=0.6, astray=0.3):
    """A table of action values by what is known, learnt by one-step Q-learning.

    Rewards are the steps by which an action brought the walker nearer to the goal, less its time.
    """
    rng, table = random.Random(0), {}
    with open("data/train.json") as file:
        seeds = json.load(file)
    for seed in seeds * rounds:
        maze, policy = Maze(seed), {}
        away = distances(maze.cells, maze.goal)
        exec(code, policy)
        key = policy["look"](maze.observe())
        while not maze.over:
            values = table.setdefault(key, [0.0] * 4)
            ways = policy["open_ways"](key)
            action = max(ways, key=values.__getitem__)
            if rng.random() < astray:
                action = rng.choice(ways)
            policy["last"], before = action, away[maze.here] + maze.time
            maze.step(action)
            key = policy["look"](maze.observe())
            gained = before - away[maze.here] - maze.time
            known = table.get(key, (0.0,) * 4)
            best = 0 if maze.here == maze.goal else max(known[w] for w in policy["open_ways"](key))
            values[action] += rate * (gained + ahead * best - values[action])
    return {key: tuple(round(v, 4) for v in values) for key, values in sorted(table.items())}


def main():
    method, level = options()
    body = (PLAN, WALK, LEARNT, COMPASS)[method - 1].format(
        level=level,
        on=(0.0, 0.5, 0.75, 0.9)[level - 1],
        astray=(0.6, 0.4, 0.25, 0.1)[level - 1],
    )
    if method == 3:
        table = learn(compile(body, "look", "exec"))
        body = f"TABLE = {json.dumps(table, indent=0)}\n{body}"
    with open("policy.py", "w") as file:
        file.write(HEAD.format(method=method, level=level) + body)


main()
