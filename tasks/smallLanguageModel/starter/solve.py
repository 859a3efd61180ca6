"""Counts n-grams of data/train.txt and writes model.bin for model.py.

`python3 solve.py ORDER`: contexts of 0 to ORDER bytes. Without one, nothing is counted: all bytes are equally
likely, which is 8 bits per byte.
"""

import json
import sys

counts = {}
if len(sys.argv) > 1:
    with open("data/train.txt", encoding="latin-1", newline="") as file:
        text = file.read()
    for length in range(int(sys.argv[1]) + 1):
        for at in range(length, len(text)):
            after = counts.setdefault(text[at - length : at], {})
            after[text[at]] = after.get(text[at], 0) + 1
with open("model.bin", "w") as file:
    json.dump(counts, file)
