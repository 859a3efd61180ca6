"""Asks the fork server to run a command with this process's streams: for shell scripts and for pytest-xdist.

    python tests/command.py SOCKET air tasks

Standard library only: it starts in milliseconds.
"""

import json
import os
import signal
import socket
import sys


def main(address: str, argv: list[str]) -> int:
    """Runs one command to its end; gives its exit code."""
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(address)
        here = os.path.realpath(os.curdir)  # pathlib takes longer to import than all else
        request = json.dumps({"argv": argv, "cwd": here, "env": dict(os.environ)}).encode()
        socket.send_fds(link, [len(request).to_bytes(8, "big")], [1, 2, 0])
        link.sendall(request)
        pid = receive(link)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda received, _: os.kill(pid, received))
        empty = os.open(os.devnull, os.O_RDWR)
        os.dup2(empty, 0)
        os.dup2(empty, 1)  # whoever reads the command's output sees where it ends
        return receive(link)


def receive(link: socket.socket) -> int:
    """One number that the server sends."""
    answer = b""
    while len(answer) < 8:
        piece = link.recv(8 - len(answer))
        if not piece:
            sys.exit(1)
        answer += piece
    return int.from_bytes(answer, "big", signed=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
