"""Text of programs, as a terminal would leave it and without what could drive one."""

from __future__ import annotations

import time

import pytest

from air.view.render.clean import clean, clean_cut, cut, differing, one_line, preview


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttext\n", "plain\ttext\n"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07x", "x"),
        ("\x1b]8;;http://x.invalid\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bP1$r\x1b\\x\x1b_apc\x1b\\", "x"),
        ("\x9b31mc1", "c1"),
        ("\x1b[2J\x1b[Hx\x1bc", "x"),
        (" 10%\r 50%\r100%\n", "100%\n"),
        ("long line\rshort", "shortline"),
        ("long line\r\x1b[Kshort", "short"),
        ("long line\x1b[2K\rshort", "short"),
        ("\x1b[32m50%\x1b[0m\r\x1b[32m60%\x1b[0m", "60%"),
        ("abc\b\bX", "aXc"),
        ("\b\bX", "X"),
        ("windows\r\nline", "windows\nline"),
        ("a\x00b\x07", "a<NUL>b<BEL>"),
        ("abc\u202edef\u200b", "abc<RLO>def<ZWSP>"),
        ("\ud800", "<U+D800>"),
        ("\x1b", ""),
        ("é 漢字 🎉", "é 漢字 🎉"),
    ],
)
def test_it_looks_as_on_a_terminal(text: str, shown: str) -> None:
    assert clean(text) == shown


def test_nothing_that_drives_a_terminal_is_left() -> None:
    everything = "".join(map(chr, range(0x3000))) + "\x1b[" + "".join(map(chr, range(0x200)))
    left = {c for c in clean(everything) if ord(c) < 32 or 0x7F <= ord(c) < 0xA0}
    assert left <= {"\n", "\t"}


@pytest.mark.parametrize(
    "text",
    [
        "\x1b]" * 500_000,
        "\x1b[" * 500_000,
        "\x1bP" * 500_000,
        "a" * 300_000 + "\rb" * 300_000,
        "a\x1b[1K" * 100_000 + "\r",
        ("a" * 1000 + "\x1b[2K\b") * 3_000,
        "a" * 500_000 + "\b" * 500_000,
    ],
    ids=lambda text: repr(text[:6]),
)
def test_time_is_linear_whatever_the_text(text: str) -> None:
    began = time.process_time()
    clean(text)
    assert time.process_time() - began < 10  # a quadratic one takes minutes


def test_one_line_and_cut() -> None:
    assert one_line("a\n  b\x1b[0m\tc", 20) == "a b c"
    assert one_line("abcdef", 4) == "abc…"
    assert cut("abc", 3) == ("abc", 0)
    shown, gone = cut("x" * 100, 30)
    assert gone == 70
    assert shown == "x" * 20 + "\n[… 70 characters left out …]\n" + "x" * 10


def test_of_a_very_long_text_both_ends_stay() -> None:
    text = "BEGIN" + "x" * 100_000 + "END"
    shown = clean_cut(text, 300)
    assert shown.startswith("BEGIN")
    assert shown.endswith("END")
    assert f"[… {len(text) - 300} characters left out …]" in shown


def test_a_preview_keeps_the_lines_of_an_action() -> None:
    assert preview("cd src\n\n  make  all\nvalidate\n", 99) == "cd src ⏎ make all ⏎ validate"
    assert preview("one\ntwo", 6) == "one ⏎…"
    assert preview("\x1b[31mred\x1b[0m\nx", 99) == "red ⏎ x"


def test_previews_beside_each_other_show_what_differs() -> None:
    tries = [f'echo "method={m} level=4" > config ⏎ validate' for m in (1, 2)]
    assert differing([*tries, "rm -f submission.csv"]) == [
        '…"method=1 level=4" > config ⏎ validate',
        '…"method=2 level=4" > config ⏎ validate',
        "rm -f submission.csv",
    ]
    assert differing(["validate", "validate"]) == ["validate", "validate"]
    assert differing(["train --lr 1", "train --lr 1 --more"]) == ["…1", "…1 --more"]
