"""Observations are capped in tokens, and the cut is marked."""

from __future__ import annotations

from air.env.observation_truncation import counter_for


def test_without_a_tokenizer_three_bytes_count_as_a_token() -> None:
    counter = counter_for(None)
    assert counter.count("") == 0
    assert counter.count("abcd") == 2
    assert counter.count("ü") == 1


def test_a_short_text_is_left_alone() -> None:
    assert counter_for(None).cap("abc", 1) == ("abc", False)


def test_a_long_text_loses_its_middle() -> None:
    text, cut = counter_for(None).cap("a" * 300 + "z" * 300, 20)
    assert cut
    assert text == "a" * 30 + "\n[… 180 tokens cut …]\n" + "z" * 30


def test_cutting_inside_a_character_gives_valid_text() -> None:
    text, cut = counter_for(None).cap("é" * 500, 21)
    assert cut
    assert set(text.replace("\n[… 313 tokens cut …]\n", "")) == {"é"}


def test_text_that_utf8_cannot_encode_is_counted() -> None:
    assert counter_for(None).count("\ud800") == 1
    assert counter_for(None).cap("\ud800" * 9, 1) == ("?\n[… 2 tokens cut …]\n??", True)
