"""Trains a small network for regression, with the hyper-parameters of a chosen configuration.

The network has one layer of tanh units; it is trained by stochastic gradient descent with momentum on the
squared error. All chance comes from a fixed seed, so a configuration has one result.
"""

import math
import random

CHOICES = {
    "rate": (1e-5, 1.0),
    "decay": (0.5, 1.0),
    "momentum": (0.0, 0.99),
    "shrink": (1e-8, 1.0),
    "scale": (0.01, 10.0),
    "units": (1, 32),
    "epochs": (1, 60),
}
"""The hyper-parameters and their bounds; the last two are whole numbers.

rate: the step of the first epoch; decay: its factor from epoch to epoch; momentum; shrink: weight decay;
scale: the size of the hidden layer's first weights; units: of the hidden layer; epochs: over the rows."""
BUDGET = 400
"""Most units * epochs."""


class BadConfig(Exception):
    """The configuration cannot be trained with; the text is shown to its author."""


def checked(config):
    """The configuration as it is used.

    Raises:
        BadConfig: a name is missing or unknown, or a value is out of bounds.
    """
    if not isinstance(config, dict) or set(config) != set(CHOICES):
        raise BadConfig(f"expected exactly the names {', '.join(CHOICES)}")
    for name, (low, high) in CHOICES.items():
        kinds = (int,) if name in ("units", "epochs") else (int, float)
        if type(config[name]) not in kinds or not low <= config[name] <= high:
            what = "a whole number" if kinds == (int,) else "a number"
            raise BadConfig(f"{name} is {config[name]!r:.30}, expected {what} {low:g} to {high:g}")
    if config["units"] * config["epochs"] > BUDGET:
        raise BadConfig(f"units * epochs is over the budget of {BUDGET}")
    return config


def fit(config, rows, targets):
    """A function from a row to its prediction.

    Raises:
        BadConfig: see `checked`, or the training diverged.
    """
    c = checked(config)
    rng = random.Random(0)
    inputs = len(rows[0])
    hidden = [[rng.gauss(0, c["scale"]) for _ in range(inputs + 1)] for _ in range(c["units"])]
    output = [0.0] * (c["units"] + 1)
    mean = math.fsum(targets) / len(targets)
    speeds, speed = [[0.0] * (inputs + 1) for _ in hidden], [0.0] * len(output)
    rate, keep, order = c["rate"], c["momentum"], list(range(len(rows)))
    data = [([*row, 1.0], target - mean) for row, target in zip(rows, targets, strict=True)]
    for _ in range(c["epochs"]):
        rng.shuffle(order)
        for i in order:
            x, target = data[i]
            h = _hidden(hidden, x)
            error = _dot(output, h) - target
            if not abs(error) < 1e6:
                raise BadConfig("the training diverged")
            for j, unit in enumerate(hidden):
                slope = error * output[j] * (1 - h[j] * h[j])
                _step(unit, speeds[j], slope, x, rate, keep, c["shrink"])
            _step(output, speed, error, h, rate, keep, c["shrink"])
        rate *= c["decay"]
    return lambda row: mean + _dot(output, _hidden(hidden, [*row, 1.0]))


def mean_squared_error(predict, rows, targets):
    """Of a function from a row to its prediction."""
    return math.fsum((predict(x) - y) ** 2 for x, y in zip(rows, targets, strict=True)) / len(rows)


def table(text):
    """Rows and targets of the text of a table."""
    cells = [[float(x) for x in line.split(",")] for line in text.splitlines()[1:]]
    return [row[:-1] for row in cells], [row[-1] for row in cells]


def _hidden(units, x):
    return [*(math.tanh(_dot(unit, x)) for unit in units), 1.0]


def _dot(weights, x):
    total = 0.0
    for weight, value in zip(weights, x, strict=True):
        total += weight * value
    return total


def _step(weights, speeds, error, x, rate, keep, shrink):
    for at, value in enumerate(x):
        speeds[at] = keep * speeds[at] - (1 - keep) * rate * (error * value + shrink * weights[at])
        weights[at] += speeds[at]
