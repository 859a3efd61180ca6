"""BLEU, clusters and shares, on texts worked by hand."""

from __future__ import annotations

import math
import random
import time
from collections import deque
from collections.abc import Sequence

import numpy as np
import pytest

from air.rewards.proposals.novelty import (
    MOST_TEXTS,
    THRESHOLD,
    Window,
    bleu,
    clusters,
    distance,
    words,
)


def test_bleu_by_hand() -> None:
    cat = words("the cat sat on the mat")
    assert bleu(cat, cat) == pytest.approx(1.0)
    # 5 of 6 words, 3 of 5 pairs, 2 of 4 triples, 1 of 3 quadruples.
    other = words("the cat sat on a mat")
    assert bleu(other, cat) == pytest.approx((5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)
    # All n-grams are in the reference, which is twice as long: only the brevity counts.
    assert bleu(words("a b c d"), words("a b c d e f g h")) == pytest.approx(math.exp(1 - 8 / 4))
    assert bleu(words("a"), words("b")) == 0.0
    # Two words: no triples. One common word, no common pair: 0.1 of one.
    assert bleu(words("a b"), words("a c")) == pytest.approx(math.sqrt(1 / 2 * 0.1 / 1))
    assert bleu((), ()) == 1.0


def test_texts_with_a_distance_of_at_most_one_half_are_a_cluster() -> None:
    near = ["a b c d e f g h i j k l", "a b x d e y g h i j k l"]
    assert distance(*map(words, near)) == pytest.approx(0.484, abs=1e-3)
    assert clusters(near) == [0, 0]
    far = ["a b c d e f g", "a b x d e f g"]
    assert distance(*map(words, far)) == pytest.approx(0.511, abs=1e-3)
    assert clusters(far) == [0, 1]


def test_distance_is_symmetric() -> None:
    one, other = words("what is 3 + 4 ?"), words("what is 3 + 5 ? tell me")
    assert distance(one, other) == distance(other, one)
    assert distance(one, one) == 0.0


def test_clusters_by_hand() -> None:
    texts = [
        "Ada has 3 apples and finds 4 more. How many apples does Ada have now?",
        "A rope is 10 metres long. Ben cuts off 3 metres. How many are left?",
        "ADA has 3 apples and finds 4 more. How many apples does Ada have now?",
        "Ada has 3 apples and finds 5 more. How many apples does Ada have now?",
        "Integrate x squared.",
    ]
    assert clusters(texts) == [0, 1, 0, 0, 2]
    assert clusters([]) == []
    assert clusters(texts, threshold=-1.0) == [0, 1, 0, 2, 3]  # equal texts are one in any case


def test_linkage_is_the_average_over_texts() -> None:
    # Distances: 0.32 between the first two, 0.41 between the last two, 0.83 between the first and the last.
    near = ["a b c d e f g h", "a b c d e f x y", "a b z d e f x y"]
    assert clusters(near) == [0, 0, 1]  # (0.83 + 0.41) / 2 > 0.5
    assert (
        clusters([near[0]] + 9 * [near[1]] + [near[2]]) == [0] * 11
    )  # (0.83 + 9 * 0.41) / 10 < 0.5


def test_a_window_counts_copies_among_the_last_proposals() -> None:
    window = Window(4)
    assert window.share("what is 1 + 1 ?") == 1 / 4
    assert window.share("name the capital of France") == 1 / 4
    assert window.share("what is 1 + 1 ?") == 2 / 4
    assert [window.share("what is 1 + 1 ?") for _ in range(3)] == [3 / 4, 3 / 4, 1.0]


@pytest.mark.parametrize(
    "hidden",
    [
        "\u00ad",
        "\ufe0f",
        "\u034f",
        "\u115f",
        "\u3164",
        "\u0336",
        "\u061c",
        "\ufffb",
        "\u2800",
        "\ufff0",
    ],
)
def test_a_copy_cannot_hide_behind_characters_that_nobody_sees(hidden: str) -> None:
    question = "Ada has 3 apples and finds 4 more. How many has she now?"
    copies = [
        "".join(sign + hidden * (place % step == 0) for place, sign in enumerate(question))
        for step in (1, 2, 3, 5)
    ]
    assert {words(copy) for copy in copies} == {words(question)}


def test_a_copy_cannot_hide_behind_wide_letters_or_accents() -> None:
    wide = "".join(chr(ord(sign) + 0xFEE0) for sign in "2+2=")
    assert (
        words(f"Was ist {wide}\u3000Ü?")
        == words("was ist 2+2= U\u0308?")
        == words("Was ist 2+2= u?")
    )
    assert words("два и два") == ("два", "и", "два")
    assert words("two\nlines\tand more") == ("two", "lines", "and", "more")


def test_the_words_of_a_text_are_kept_once() -> None:
    """The caches have a quarter of a million pairs of texts. Each would have words of its own."""
    assert words("what is 1 + 1 ?") is words("what is 1 + 1 ?")


def test_cost_is_capped() -> None:
    began = time.process_time()
    assert len(set(clusters([f"w{n} v{n} u{n}" for n in range(MOST_TEXTS)]))) == MOST_TEXTS
    assert clusters(["copy " * 100_000] * 5000) == [0] * 5000
    assert time.process_time() - began < 60.0
    with pytest.raises(ValueError, match="more than 512"):
        clusters([str(n) for n in range(MOST_TEXTS + 1)])
    with pytest.raises(ValueError, match="between 1 and 512"):
        Window(0)


@pytest.mark.slow
def test_the_cost_of_merging_is_capped() -> None:
    """The most different texts, each of which is merged with all others."""
    texts = [f"a b c d e f g h {n}" for n in range(MOST_TEXTS)]
    began = time.process_time()
    assert clusters(texts) == [0] * MOST_TEXTS
    window = Window(MOST_TEXTS)
    assert [window.share(text) for text in texts[:100]] == [n / MOST_TEXTS for n in range(1, 101)]
    assert time.process_time() - began < 60.0  # measured: 4


def test_a_window_computes_each_distance_once() -> None:
    """The number of distances that a proposal needs grows with the window, not with its square."""
    window = Window(64)
    for number in range(200):
        before = _distances_asked()
        window.share(f"What is {number} plus {number + 1}?")
        assert _distances_asked() - before == min(number, 63)
    before = _distances_asked()
    window.share("What is 199 plus 200?")
    assert _distances_asked() == before


def _distances_asked() -> int:
    counts = distance.cache_info()
    return counts.hits + counts.misses


@pytest.mark.parametrize("threshold", [-1.0, 0.2, THRESHOLD, 0.8, 1.0])
@pytest.mark.parametrize("size", [1, 2, 9, 40])
def test_a_window_clusters_as_if_it_began_anew(size: int, threshold: float) -> None:
    """Random texts with many copies and many equal distances, of which the first pair is merged."""
    random_numbers = random.Random(1000 * size + round(10 * threshold))
    window, latest = Window(size, threshold), deque[str](maxlen=size)
    for _ in range(150):
        vocabulary, most = random_numbers.choice([("abc", 3), ("abc", 3), ("abcde", 7)])
        text = " ".join(random_numbers.choices(vocabulary, k=random_numbers.randint(0, most)))
        latest.append(text)
        numbers = _clustered_anew(list(latest), threshold)
        assert window.share(text) == numbers.count(numbers[-1]) / size
        assert clusters(list(latest), threshold) == numbers


def _clustered_anew(texts: Sequence[str], threshold: float) -> list[int]:
    """Returns the cluster number of each text, by average linkage on all distances of the texts."""
    each = [words(text) for text in texts]
    points = list(dict.fromkeys(each))
    count = len(points)
    matrix = np.full((count, count), np.inf)
    for row in range(count):
        for column in range(row):
            matrix[row, column] = matrix[column, row] = distance(points[row], points[column])
    sizes = np.array([each.count(point) for point in points], dtype=float)
    cluster = list(range(count))
    while count:
        first, second = divmod(int(matrix.argmin()), count)
        if not matrix[first, second] <= threshold:
            break
        keep, drop = min(first, second), max(first, second)
        total = sizes[keep] + sizes[drop]
        joined = (sizes[keep] * matrix[keep] + sizes[drop] * matrix[drop]) / total
        joined[keep] = np.inf
        matrix[keep], matrix[:, keep] = joined, joined
        matrix[drop], matrix[:, drop] = np.inf, np.inf
        sizes[keep] = total
        cluster = [keep if own == drop else own for own in cluster]
    found = dict.fromkeys(cluster)
    return [list(found).index(cluster[points.index(point)]) for point in each]
