"""Normalises the notation of a mathematical answer to a small subset of LaTeX, without evaluating the
answer.

Digits of all scripts, full-width characters, fractions such as `½`, exponents such as `²` and the signs
`×`, `−`, `π` become ASCII or LaTeX. Invisible characters, dollar signs, LaTeX spaces and commands for the
size of brackets are removed. Repeating decimals become fractions.
"""

from __future__ import annotations

import re
import unicodedata

MOST_CHARACTERS = 1000
"""The maximum length of a mathematical answer in characters. A longer text counts as no answer."""
_SIGNS = {
    **dict.fromkeys("−–—﹣－‒", "-"),
    **dict.fromkeys("×⋅·∙", r"\cdot "),
    "÷": "/",
    "π": r"\pi ",
    "∞": r"\infty ",
    "√": r"\sqrt ",
    "≤": r"\le ",
    "≥": r"\ge ",
    "≠": r"\ne ",
    "∪": r"\cup ",
    "∩": r"\cap ",
    "∅": r"\emptyset ",
    "±": r"\pm ",
    "∈": r"\in ",
    "ℝ": r"\mathbb{R}",
    "°": r"^\circ ",
    "’": "'",
    "‘": "'",
    "“": '"',
    "”": '"',
    "⁄": "/",
}
_SUPERSCRIPTS = {**dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789", strict=True)), "⁻": "-", "⁺": "+"}
_RAISED = re.compile(f"[{''.join(_SUPERSCRIPTS)}]+")
_SEPARATOR = r"(?:\{,\}|,?\\!\s*|\\[,;: ])"
_SEPARATED = re.compile(rf"(?<![0-9.,])[0-9]+(?:{_SEPARATOR}[0-9]+)+")
_GROUPED = re.compile(rf"[0-9]{{1,3}}(?:{_SEPARATOR}[0-9]{{3}})+")
"""A number with LaTeX's separators of thousands, such as `1{,}234`, `1,\\!234` or `1\\,234`. They never
separate the parts of a list, as the comma of `1,234` can."""
_REPEATING = re.compile(
    r"""(?<![0-9.])(?<![0-9]\s)(?P<whole>[1-9][0-9]{0,2}(?:,[0-9]{3})+|[0-9]*)\.(?P<once>[0-9]*)
        \\(?:overline|bar)\s*(?:\{(?P<braced>[0-9]+)\}|(?P<single>[0-9]))(?!\s*(?:[0-9]|\\overline|\\bar))""",
    re.VERBOSE,
)
"""A decimal whose last digits repeat for ever, such as `0.1\\overline{6}`."""
_ABOUT = re.compile(r"(?:[^=]*[^=~<>!]=)?\s*~[~\s]*[-+]?[.0-9]")
"""The beginning of an answer in which a tilde before a number means `about`: `~5`, or `x = ~5`."""
_WRAPPERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"), ("`", "`"))
_REPLACED: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), by)
    for pattern, by in (
        (r"\\(?:left|right|bigl?|bigr|Bigl?|Bigr|displaystyle|limits)(?![a-zA-Z])\s*", ""),
        (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
        (r"\\(?:leq|leqslant)(?![a-zA-Z])", r"\\le "),
        (r"\\(?:geq|geqslant)(?![a-zA-Z])", r"\\ge "),
        (r"\\neq(?![a-zA-Z])", r"\\ne "),
        (r"\\varnothing(?![a-zA-Z])", r"\\emptyset "),
        (
            r"\\(?:text(?:bf|it|rm)?|mathrm|mathbf|boldsymbol|bm|mbox|textnormal)\s*\{([^{}]*)\}",
            r"\\text{\1}",
        ),
        (r"\^\s*\{?\s*(?:\\circ|\\degree)\s*\}?", r"\\text{ degrees}"),
        (r"\{,\}", ","),
        (r"\\lbrace(?![a-zA-Z])\s*", r"\\{"),
        (r"\\rbrace(?![a-zA-Z])\s*", r"\\}"),
        (r"\\[lr]vert(?![a-zA-Z])\s*", "|"),
        (r"(?<!\\)\\[,!;: ]|\\q?quad(?![a-zA-Z])", " "),  # `\\ ` begins a row of a matrix
        (r"\\%", "%"),
        (r"\\\$|\\text\{\s*\\?\$\s*\}", "$"),
        (r"\*\*", "^"),
        (r"\*", r"\\cdot "),
        (r"\^\s*(-?[0-9]+)", r"^{\1}"),
        (r"\^\s*\(([^()]*)\)", r"^{\1}"),
        (r"(?<![a-zA-Z\\])sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"(?<![a-zA-Z\\])(sqrt|pi|infty|sin|cos|tan|log|ln|exp)(?![a-zA-Z])", r"\\\1 "),
        (r"(?<![a-zA-Z\\])(?:infinity|inf|oo)(?![a-zA-Z])", r"\\infty "),
        (r"<=", r"\\le "),
        (r">=", r"\\ge "),
        (r"\\frac\s*([0-9])\s*([0-9])(?![0-9])", r"\\frac{\1}{\2}"),
        (r"\\sqrt\s*([0-9]+)", r"\\sqrt{\1}"),
    )
)


def normal(text: str) -> str:
    """Returns a mathematical answer in a normalised notation, a small subset of LaTeX: for example, `$½ x²$`
    becomes `1/2 x^{2}`. Returns an empty string if `text` is blank or longer than `MOST_CHARACTERS`."""
    if len(text) > MOST_CHARACTERS:
        return ""
    text = without_separators(_unwrapped(_ascii(text)))
    text = _REPEATING.sub(_as_fraction, text)
    if not _ABOUT.match(text) or text.endswith("~"):
        text = text.replace("~", " ")  # the space of LaTeX that breaks no line
    for pattern, by in _REPLACED:
        text = pattern.sub(by, text)
    return " ".join(text.split())


def without_separators(text: str) -> str:
    """Removes LaTeX's separators of thousands from the numbers in `text`: `10,\\!080` becomes `10080`. Commas
    alone stay."""
    return _SEPARATED.sub(_without_separators, text)


def _without_separators(match: re.Match[str]) -> str:
    # Digits are matched first and their groups afterwards, so that the time is linear in the text.
    return re.sub(_SEPARATOR, "", match[0]) if _GROUPED.fullmatch(match[0]) else match[0]


def compact(text: str) -> str:
    """Returns a form of `text` (an answer in normalised notation) for comparison with other answers: letters
    are in lower case, `\\text{…}` is replaced by its content, and all spaces are removed except those between
    digits."""
    text = re.sub(r"\\text\{([^{}]*)\}", r"\1", text)
    return re.sub(r"(?<![0-9])\s+|\s+(?![0-9])", "", text).casefold()


def _as_fraction(match: re.Match[str]) -> str:
    """Returns a repeating decimal as a fraction: `0.1\\overline{6}` is (16 − 1)/90."""
    before = match["whole"].replace(",", "") + match["once"]
    again = match["braced"] or match["single"]
    top = int(before + again) - int(before or "0")
    bottom = int("9" * len(again) + "0" * len(match["once"]))
    return rf"\frac{{{top}}}{{{bottom}}}"


def _ascii(text: str) -> str:
    text = _RAISED.sub(lambda m: "^{" + "".join(_SUPERSCRIPTS[c] for c in m[0]) + "}", text)
    return "".join(map(_replaced, text))


def _replaced(character: str) -> str:
    if character.isascii():
        return character
    if character in _SIGNS:
        return _SIGNS[character]
    kind = unicodedata.category(character)
    if kind == "Cf":
        return ""
    if kind == "Zs":
        return r"\," if character in "\u2009\u202f\u00a0" else " "
    if kind == "Nd":
        return str(unicodedata.decimal(character))
    if kind == "No" and unicodedata.decomposition(character).startswith("<fraction>"):
        return " " + unicodedata.normalize("NFKC", character).replace("\u2044", "/")
    if "\uff01" <= character <= "\uff5e":  # wide forms of ASCII
        return chr(ord(character) - 0xFEE0)
    return character


def _unwrapped(text: str) -> str:
    """Removes what surrounds an answer: spaces, a final full stop, dollar signs, and Markdown marks."""
    before = None
    while text != before:
        before = text
        text = text.strip().removesuffix(".").rstrip()
        for start, end in _WRAPPERS:
            inner = text[len(start) : -len(end)]
            is_nested = start in inner.replace(r"\$", "")  # an escaped dollar sign ends no formula
            if text.startswith(start) and text.endswith(end) and inner and not is_nested:
                text = inner
    return text
