"""Digests are made of code without docstrings, comments and blank lines; every other text counts."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

from air.source_code import code_of_file, code_of_function

BEFORE = '''"""A module."""

import math  # for pi

LIMIT = 3
"""Größe of a thing."""


class Thing:
    """A thing."""

    size: int = 1
    """Its size."""

    def area(self) -> float:
        """Returns the area.

        In square metres.
        """
        # A circle.
        return math.pi * self.size**2  # ä


def prompt() -> str:
    "Returns a prompt."
    return """# not a comment
    'nor a docstring'
"""
'''
AFTER = '''"""Another text,
of two lines."""

import math  # for the number

LIMIT = 3
"""The limit."""


class Thing:
    """A circle."""

    size: int = 1
    """The radius in metres."""

    def area(self) -> float:
        """Returns the area in square metres."""
        # Of a circle.
        return math.pi * self.size**2  # the formula


def prompt() -> str:
    """Returns what the model is asked."""
    return """# not a comment
    'nor a docstring'
"""
'''


def code(folder: Path, text: str) -> str:
    file = folder / "module.py"
    file.write_text(text, "utf-8")
    return code_of_file(file)


def test_other_docstrings_and_comments_are_the_same_code(tmp_path: Path) -> None:
    assert code(tmp_path, BEFORE) == code(tmp_path, AFTER)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# not a comment", "# another prompt"),
        ("'nor a docstring'", "'other words'"),
        ("size**2", "size**3"),
        ("LIMIT = 3", "LIMIT = 4"),
    ],
)
def test_other_code_is_other_code(tmp_path: Path, old: str, new: str) -> None:
    assert old in BEFORE
    assert code(tmp_path, BEFORE) != code(tmp_path, BEFORE.replace(old, new))


DOCUMENTED = '''# A comment
# of two lines

"""A module."""

# A comment.

X = 1  # one
"""The number."""

# A comment.


class Thing:
    """A thing."""

    # A comment.

    def area(self, a):
        """Returns the area."""

        # A comment
        return f(  # of the line
            a,
            # and of the argument

            self,
        )
# The end.'''
BARE = """X = 1
class Thing:
    def area(self, a):
        return f(
            a,
            self,
        )
"""


def test_comments_docstrings_and_blank_lines_may_be_added(tmp_path: Path) -> None:
    assert code(tmp_path, DOCUMENTED) == code(tmp_path, BARE) == BARE.rstrip()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('x = """a  \n\n  # b\n"""  \n', 'x = """a  \n\n  # b\n"""'),
        ('x = f"""a  \n\n{y}\n\n  # b"""  \n', 'x = f"""a  \n\n{y}\n\n  # b"""'),
        ('x = "a\\\n\\\n  # b"\n\n', 'x = "a\\\n\\\n  # b"'),
        ("x = a \\\n\n-b\n", "x = a \\\n\n-b"),  # two statements
        ("x = a \\\n-b\n", "x = a \\\n-b"),
        ('def f(): "A function."; return 1\n', "def f(): ...; return 1"),
        ('def f():\n    """A function.\n\n    """\n', "def f():\n    ..."),
        ('"""A module."""; x = 1\n', "...; x = 1"),
        ('"""A module."""\n', ""),
        ('"""A\nmodule."""; x = """a  \n\n"""\n', '...; x = """a  \n\n"""'),
        ('"a"; x: int = 1; """b\n"""  # c\n', "...; x: int = 1; ..."),
        ('"a"\n"b"\n', '"b"'),
        ("", ""),
    ],
)
def test_strings_and_statements_keep_their_lines(tmp_path: Path, text: str, expected: str) -> None:
    assert code(tmp_path, text) == expected


def test_files_are_read_in_the_encoding_that_they_declare(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_bytes("# coding: latin-1\nx = 'ä'\n".encode("latin-1"))
    assert code_of_file(file) == "x = 'ä'"
    file.write_bytes("x = 'ä'\n".encode("utf-8-sig"))
    assert code_of_file(file) == "x = 'ä'"


def test_files_of_the_package_keep_their_program() -> None:
    files = sorted(Path(code_of_file.__code__.co_filename).parent.rglob("*.py"))
    assert len(files) > 100
    for file in files[::10]:
        assert program(code_of_file(file)) == program(file.read_text("utf-8")), file


def program(text: str) -> str:
    """Returns the syntax tree of a text without expressions that are constants, such as docstrings."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [
                one
                for one in node.body
                if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))
            ]
    return ast.dump(tree)


def test_functions_and_callable_objects_have_the_code_of_their_file() -> None:
    class Callable:
        def __call__(self) -> None: ...

    expected = code_of_file(Path(__file__))
    assert code_of_function(code) == code_of_function(functools.partial(code)) == expected
    assert code_of_function(Callable()) == code_of_function(Callable().__call__) == expected
    assert code_of_function(len) == ""
