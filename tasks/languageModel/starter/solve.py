"""Writes model.py from data/train.txt: predict(text) -> weights of the 96 characters that may follow.

The characters are the end of a line and those from " " to "~" (codes 32 to 126), in this order. model.py
carries a part of the text with it, compressed, and counts in it when it is loaded.

Options are read from the file `config`, one line such as `method=2 level=3`:

method  1 counts plus one
        2 counts plus one, of the longest context that occurred four times
        3 all contexts interpolated (Witten and Bell)
        4 the same, and what has been read is counted too
level   1 contexts of one character
        2 of up to two characters
        3 of up to three
        4 of up to five
"""

import base64
import sys
import zlib

KEPT = 300_000
"""Characters of the text that model.py carries: more of them take longer to count."""
MODEL = '''"""Written by solve.py: method {method}, level {level}."""

import base64
import zlib

METHOD, LONGEST = {method}, {longest}
ALPHABET = "\\n" + "".join(map(chr, range(32, 127)))
PLACES = {{character: place for place, character in enumerate(ALPHABET)}}
counts = {{}}


def count(text, begin=0):
    """Counts what follows each context, for the characters from `begin` on."""
    shortest = LONGEST if METHOD == 1 else 0
    for at in range(begin, len(text)):
        place = PLACES[text[at]]
        for length in range(shortest, min(LONGEST, at) + 1):
            context = text[at - length : at]
            follows = counts.get(context)
            if follows is None:
                counts[context] = {{place: 1}}
            else:
                follows[place] = follows.get(place, 0) + 1


def plus_one(follows):
    weights = [1.0] * 96
    for place, times in follows.items():
        weights[place] += times
    return weights


def longest(text):
    for length in range(min(LONGEST, len(text)), -1, -1):
        follows = counts.get(text[len(text) - length :], {{}})
        if length == 0 or sum(follows.values()) >= 4:
            return plus_one(follows)


def interpolated(text):
    """The longer the context, the later it is mixed in; the more follows it, the less it is believed."""
    weights = [1 / 96] * 96
    for length in range(min(LONGEST, len(text)) + 1):
        follows = counts.get(text[len(text) - length :])
        if follows is None:
            break
        total = len(follows) + sum(follows.values())
        share = len(follows) / total
        weights = [share * weight for weight in weights]
        for place, times in follows.items():
            weights[place] += times / total
    return weights


def predict(text):
    if METHOD == 1:
        return plus_one(counts.get(text[-LONGEST:], {{}}))
    if METHOD == 2:
        return longest(text)
    if METHOD == 4 and text:
        count(text, len(text) - 1)
    return interpolated(text)


count(zlib.decompress(base64.b85decode(
    "{packed}"
)).decode("ascii"))
'''


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


def main():
    method, level = options()
    with open("data/train.txt", encoding="ascii") as file:
        text = file.read(KEPT)
    packed = base64.b85encode(zlib.compress(text.encode("ascii"), 9)).decode("ascii")
    longest = (1, 2, 3, 5)[level - 1]
    with open("model.py", "w") as file:
        file.write(MODEL.format(method=method, level=level, longest=longest, packed=packed))


main()
