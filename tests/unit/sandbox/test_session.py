"""What a session takes over from what a command's shell left."""

from __future__ import annotations

import pytest

from air.sandbox.contract.session import State, parse


@pytest.mark.parametrize(
    ("data", "state"),
    [
        (b"T\0/\n\0T", State("/")),
        (b"T\0/a\nb\n\0A=1\0B=x=y\nz\0C=\0T", State("/a\nb", {"A": "1", "B": "x=y\nz", "C": ""})),
        (b"T\0sh\0/a\n\0export A='x y'\nexport B='it'\"'\"'s\n2'\nexport C\nexport PWD='/a'\n\0T",
         State("/a", {"A": "x y", "B": "it's\n2"}, "sh")),
        (b"T\0/\xff\n\0A=\xfe\0T", State("/\udcff", {"A": "\udcfe"})),
        (b"T\0/\n\0PWD=/x\0SHLVL=2\0_=x\0AIR_COMMAND=1\0UID=0\0SHELLOPTS=x\0A=T\0T", State("/", {"A": "T"})),
    ],
)  # fmt: skip
def test_what_a_shell_left(data: bytes, state: State) -> None:
    assert parse(data, "T") == state


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "replaced"),
        (b"other\0/\n\0other", "replaced"),
        (b"T", "incomplete"),
        (b"T\0/\n\0A=1\0", "incomplete"),
        (b"T\0/\n\0A=1\0other", "incomplete"),
        (b"T\0relative\n\0A=1\0T", "damaged"),
        (b"T\0\n\0T", "damaged"),
        (b"T\0/\n\0A\0T", "damaged"),
        (b"T\0/\n\0A-B=1\0T", "damaged"),
        (b"T\0/\n\0$(reboot)=1\0T", "damaged"),
        (b"T\0sh\0/\n\0export A='x\n\0T", "damaged"),
        (b"T\0sh\0/\n\0export $(reboot)=1\n\0T", "damaged"),
        (b"T\0sh\0/\n\0T", "damaged"),
        ("T\0/\n\0Ä=1\0T".encode(), "damaged"),
    ],
)
def test_what_no_shell_of_ours_left(data: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse(data, "T")
