"""A model of n-grams: how often each byte followed the last ones, longer contexts weighing more.

`load` is given the bytes of model.bin and returns `predict`.
"""

import json


def load(weights):
    counts = json.loads(weights or "{}")
    longest = len(max(counts, key=len, default=""))

    def predict(context):
        """256 probabilities of the byte that follows, from even ones on."""
        chances, text = [1 / 256] * 256, context.decode("latin-1")
        for length in range(longest + 1):
            found = counts.get(text[len(text) - length :]) if length <= len(text) else None
            if found:
                total = sum(found.values())
                trust = total / (total + 4)
                chances = [(1 - trust) * p for p in chances]
                for char, count in found.items():
                    chances[ord(char)] += trust * count / total
        return chances

    return predict
