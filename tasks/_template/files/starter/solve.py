"""Fits a polynomial to data/train.csv and writes submission.csv for data/val.csv and data/test.csv.

`python3 solve.py DEGREE`; without one, degree 0: the mean.
"""

import csv
import sys

import numpy as np


def read(split):
    with open(f"data/{split}.csv", newline="") as file:
        return list(csv.DictReader(file))


def main():
    degree = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    train = read("train")
    xs, ys = ([float(row[name]) for row in train] for name in ("x", "y"))
    weights = np.polyfit(xs, ys, degree)
    with open("submission.csv", "w") as file:
        file.write("id,y\n")
        for row in read("val") + read("test"):
            file.write(f"{row['id']},{np.polyval(weights, float(row['x'])):.6f}\n")


main()
