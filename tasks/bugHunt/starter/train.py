"""Trains a small network to tell four classes apart: train(rows, labels) -> its numbers.

The network standardises its six inputs, has one layer of 12 tanh units, and four outputs, of which the
largest is its answer; the last weight of every unit is its bias. It is trained by stochastic gradient
descent on the cross-entropy, with a rate that decays from epoch to epoch, and the weights of the epoch
with the smallest loss are kept. `python3 check.py` trains it on data/train.csv and measures it on
data/check.csv.

Something is wrong with it: about nine answers in ten should be right.
"""

import math
import random

HIDDEN, CLASSES = 12, 4
EPOCHS, RATE, DECAY, SHRINK = 30, 0.1, 0.92, 0.0005


def standardise(rows):
    """The mean and the standard deviation of every column."""
    columns = list(zip(*rows))
    mean = [math.fsum(column) / len(column) for column in columns]
    scale = [
        math.fsum((x - m) ** 2 for x in column) / len(column) for column, m in zip(columns, mean)
    ]
    return mean, scale


def start(units, inputs):
    """Small random weights; the last one of every unit is its bias."""
    weight = random.uniform(-1, 1) / math.sqrt(inputs)
    return [[weight] * (inputs + 1) for _ in range(units)]


def layer(weights, x):
    """What goes into every unit."""
    return [math.fsum(w * v for w, v in zip(unit, x)) + unit[-1] for unit in weights]


def softmax(scores):
    top = max(scores)
    powers = [math.exp(score - top) for score in scores]
    total = math.fsum(powers)
    return [power / total for power in powers]


def update(weights, errors, x, rate):
    """One step of gradient descent for one layer, with a little weight decay."""
    for unit, error in zip(weights, errors):
        for at, value in enumerate(x):
            unit[at] -= rate * (error * value + SHRINK * unit[at])


def step(hidden, output, x, label, rate):
    """One row: forward, backward, update. Returns its cross-entropy."""
    h = [math.tanh(a) for a in layer(hidden, x)]
    p = softmax(layer(output, h))
    wrong = [p[k] - (k == label) for k in range(CLASSES)]
    back = [math.fsum(wrong[k] * output[k][j] for k in range(CLASSES)) for j in range(HIDDEN)]
    update(output, wrong, h, rate)
    update(hidden, [b * (1 - v) for b, v in zip(back, h)], x, rate)
    return -math.log(max(p[label], 1e-12))


def train(rows, labels):
    mean, scale = standardise(rows)
    inputs = [[(x - m) / s for x, m, s in zip(row, mean, scale)] for row in rows]
    hidden, output = start(HIDDEN, len(mean)), start(CLASSES, HIDDEN)
    best, kept, rate = 0.0, None, RATE
    order = list(range(len(rows)))
    for _ in range(EPOCHS):
        random.shuffle(order)
        loss = 0.0
        for i in order:
            loss += step(hidden, output, inputs[i], labels[i], rate)
            rate *= DECAY
        if loss > best:
            best, kept = loss, ([unit[:] for unit in hidden], [unit[:] for unit in output])
    return {"mean": mean, "scale": scale, "hidden": kept[0], "output": kept[1]}
