"""Runs program.txt on inputs drawn from a seed; says what is wrong, or its mean cost. Options: [SEED].

The graded inputs are others. `machine.py` says what a program may hold.
"""

import random
import sys

from machine import BadProgram, parse, run

random.seed(int(sys.argv[1]) if sys.argv[1:] else 0)
inputs = [[5], [-5], [-3, -1, -2], [0, 0], [4, -9, 4, 1, -2, 3, -8]]
inputs += [[random.randint(-99, 99) for _ in range(random.randint(1, 30))] for _ in range(40)]
costs = []
try:
    with open("program.txt") as file:
        code = parse(file.read())
    for numbers in inputs:
        answer, cost = run(code, numbers)
        count = len(numbers)
        right = max(sum(numbers[i : j + 1]) for i in range(count) for j in range(i, count))
        if answer != right:
            sys.exit(f"the answer to {numbers} is {answer}, expected {right}")
        costs.append(cost)
except BadProgram as error:
    sys.exit(f"program.txt: {error}")
print(f"right; mean cost {sum(costs) / len(costs):.2f}")
