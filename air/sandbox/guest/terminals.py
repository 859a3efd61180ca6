"""Pseudo-terminals of commands. Standard library only, Python >= 3.8, no import of `air`.

The user of a box's commands owns their terminals, because the guest opens files with that user's rights. No
path leads to the guest's end of a terminal.
"""

from __future__ import annotations

import os
import sys


def opened(size: list[int], mine: list[int], given: list[int]) -> tuple[int, ...]:
    """Opens a terminal of `size` (rows, columns). Returns the standard streams of a command in it.

    Adds the command's end to `given`, and to `mine` the guest's end, twice: to read from, and to write to.
    """
    master, slave = os.openpty()
    given.append(slave)
    mine.append(master)
    mine.append(os.dup(master))
    resize(master, size)
    return slave, slave, slave


def control(slave: int) -> None:
    """Makes the terminal `slave` the controlling one of this session, which must not have one."""
    import fcntl
    import termios

    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)


def resize(master: int, size: list[int]) -> None:
    """Sets the rows and columns of a terminal; its foreground processes get SIGWINCH if they change.

    Raises ValueError if a number is not from 1 to 65535.
    """
    import fcntl  # too slow to import at every start of a box
    import termios

    if not all(0 < number < 1 << 16 for number in size):
        raise ValueError("the rows and columns of a terminal are numbers from 1 to 65535")
    shorts = [*size, 0, 0]
    data = b"".join(number.to_bytes(2, sys.byteorder) for number in shorts)
    fcntl.ioctl(master, termios.TIOCSWINSZ, data)


def unread(fd: int) -> int:
    """Returns how many bytes a pipe or terminal now holds for its reader."""
    import fcntl
    import termios

    return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, b"\0" * 4), sys.byteorder)
