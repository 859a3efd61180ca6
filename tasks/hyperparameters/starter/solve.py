"""Searches for hyper-parameters with trainings on data/train.csv and writes the best as config.json.

Every third row is held out to measure a training. Options are read from the file `config`, one line such
as `method=2 level=3`:

method  1 guess: a usual configuration with the rate 0.0005, 0.3, 0.1 or 0.003 (level 1, 2, 3, 4)
        2 random search: the best of 3, 6, 12 or 20
        3 halving: trains 4, 8, 16 or 24 for a few epochs, drops the worse half, and again with more
        4 climbing: from a usual configuration, 3, 6, 12 or 20 random steps, each kept where it helps
"""

import json
import random
import sys

from training import BUDGET, CHOICES, BadConfig, fit, mean_squared_error, table

USUAL = {
    "rate": 0.02,
    "decay": 0.95,
    "momentum": 0.5,
    "shrink": 1e-4,
    "scale": 0.5,
    "units": 10,
    "epochs": 20,
}
SPREAD = {"rate": 2.0, "shrink": 3.0, "scale": 1.6}


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


def inside(config):
    """The same within all bounds and the budget."""
    for name, (low, high) in CHOICES.items():
        config[name] = min(max(config[name], low), high)
    config["epochs"] = min(config["epochs"], BUDGET // config["units"])
    return config


def drawn():
    """A random configuration; rate, shrink and scale on a logarithmic scale."""
    return inside(
        {
            "rate": 10 ** random.uniform(-4.5, -0.8),
            "decay": random.uniform(0.7, 1),
            "momentum": random.uniform(0, 0.9),
            "shrink": 10 ** random.uniform(-7, -2),
            "scale": 10 ** random.uniform(-1.5, 0.5),
            "units": random.randint(2, 24),
            "epochs": 60,
        }
    )


def near(config):
    """The same with some values changed a little."""
    new = dict(config)
    for name, factor in SPREAD.items():
        new[name] *= factor ** random.gauss(0, 1)
    new["decay"] += random.gauss(0, 0.03)
    new["momentum"] += random.gauss(0, 0.2)
    new["units"] = round(new["units"] * 1.5 ** random.gauss(0, 1))
    new["epochs"] = 60
    return inside(new)


def trial(config):
    """The error on the held-out rows; infinite where the training diverges."""
    with open("data/train.csv") as file:
        rows, targets = table(file.read())
    kept = [i for i in range(len(rows)) if i % 3]
    out = range(0, len(rows), 3)
    try:
        predict = fit(config, [rows[i] for i in kept], [targets[i] for i in kept])
    except BadConfig:
        return float("inf")
    return mean_squared_error(predict, [rows[i] for i in out], [targets[i] for i in out])


def halving(count):
    field, epochs = [drawn() for _ in range(count)], 3
    while len(field) > 1:
        field.sort(key=lambda config: trial(config | {"epochs": min(epochs, config["epochs"])}))
        field, epochs = field[: len(field) // 2], 2 * epochs
    return field[0]


def climbing(steps):
    best = dict(USUAL)
    error = trial(best)
    for _ in range(steps):
        new = near(best)
        new_error = trial(new)
        if new_error < error:
            best, error = new, new_error
    return best


def main():
    method, level = options()
    random.seed(2)
    if method == 1:
        found = USUAL | {"rate": (0.0005, 0.3, 0.1, 0.003)[level - 1]}
    elif method == 2:
        found = min((drawn() for _ in range((3, 6, 12, 20)[level - 1])), key=trial)
    elif method == 3:
        found = halving((4, 8, 16, 24)[level - 1])
    else:
        found = climbing((3, 6, 12, 20)[level - 1])
    with open("config.json", "w") as file:
        json.dump(found, file)
    print(json.dumps(found))


main()
